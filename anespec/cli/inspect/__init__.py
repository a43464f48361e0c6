"""Implement `anespec inspect`."""
