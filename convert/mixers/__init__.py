"""The kinds of mixers, a folder each: facts (sizes and tensors), graph, and how the two meet (prepare)."""
