"""Mamba 2 (SSD)."""
