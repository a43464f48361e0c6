"""Store a GGUF's weights as Core ML constexpr weights."""
