"""Run shards with MLX, on the GPU of a Mac."""
