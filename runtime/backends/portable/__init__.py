"""Runs .mlpackage shards anywhere: one loader, one table of operations per library."""
