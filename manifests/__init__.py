"""The artifact format: the GGUF container, the manifest schema, reading, writing and checks."""
