"""Continuations from a corpus on disk."""
