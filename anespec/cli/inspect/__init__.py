"""`anespec inspect`: what a GGUF or an artifact is."""
