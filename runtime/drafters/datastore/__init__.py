"""Draft continuations from a corpus on disk."""
