"""Soak: text by every proven means beside plain text, for hours."""
