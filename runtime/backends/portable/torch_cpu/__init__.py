"""The reference library: torch, operation by operation."""
