"""GGUF block formats -> Core ML constexpr weights."""
