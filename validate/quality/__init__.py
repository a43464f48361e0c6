"""The quality gate: what quantisation and rounding cost on real text."""
