"""Download GGUFs of the Hugging Face hub."""
