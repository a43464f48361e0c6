"""Read a GGUF model: its facts, its tensors (memory-mapped, one at a time) and its vocabulary."""
