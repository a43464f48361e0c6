"""Attention over the keys and values of earlier rows."""
