"""Serve Ollama's API: https://github.com/ollama/ollama/blob/main/docs/api.md

Ollama's clients and examples send bodies without a JSON content type, so these endpoints accept them. A page
of another site can make a browser send such a body without a preflight request. But the browser then sends
its origin, which the guard refuses, and requests with headers of browsers need the JSON content type here,
too.
"""
