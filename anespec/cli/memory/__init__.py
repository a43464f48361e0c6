"""Implement `anespec memory`: show, clear, export and import the draft memory."""
