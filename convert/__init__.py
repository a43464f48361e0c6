"""Convert a GGUF to an artifact: read the model, build its graph in MIL, write the shards."""
