"""Read a GGUF model: hyperparameters, tensors (memory-mapped, one at a time), vocabulary."""
