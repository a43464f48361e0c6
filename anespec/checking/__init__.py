"""Run the gates: all at once for `validate`, or in the background while requests run."""
