"""Gated short convolutions."""
