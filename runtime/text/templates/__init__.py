"""Chat templates: programs out of model files, rendered in a sandbox."""
