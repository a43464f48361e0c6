"""The artifact's format: the manifest's schema, the gates' verdicts, presets, reading and checks."""
