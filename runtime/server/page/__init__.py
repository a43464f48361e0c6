"""Serve the chat page at `/`. It sends no requests to other servers."""
