"""anespec: a GGUF becomes Neural Engine shards, and exact speculative text comes out of them."""

__version__ = "0.1.0"
