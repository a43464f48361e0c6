"""Serve llama-server's own endpoints."""
