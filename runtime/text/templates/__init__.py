"""Render chat templates, which are programs from model files, in a sandbox."""
