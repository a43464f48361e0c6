"""Run programs with torch, operation by operation: the reference library."""
