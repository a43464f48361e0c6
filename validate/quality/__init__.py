"""The quality gate: measure what quantisation and rounding cost on real text."""
