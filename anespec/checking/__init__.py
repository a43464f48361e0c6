"""The gates as users ask for them: all at once by `validate`, or in the background beside requests."""
