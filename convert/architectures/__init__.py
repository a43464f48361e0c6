"""One small file of data per model family; no graph code."""
