"""Soak test: compare text generated with everything that is proven with plain text, for hours."""
