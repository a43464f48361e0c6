"""The doctor: find problems of this machine and of an artifact, and how to fix them."""
