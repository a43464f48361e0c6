"""The residency gate: where each operation runs, by Core ML's compute plan or predicted by rules."""
