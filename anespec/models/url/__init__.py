"""Download GGUFs from URLs."""
