"""The embedded demo model: its GGUF file and the script that trained it."""
