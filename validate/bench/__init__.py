"""What drafting is worth: on recorded traces without a model, and on an artifact."""
