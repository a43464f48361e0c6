"""GGUF -> artifact: read a model, build its block graph in MIL, write the shards."""
