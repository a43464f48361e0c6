"""Implement `anespec chat`: conversations with a model, in a terminal or over pipes."""
