"""The block graph in MIL, by primitive."""
