"""Ollama's API, as thin translations: https://github.com/ollama/ollama/blob/main/docs/api.md

Its clients and its documentation's examples send a body without calling it JSON, so these endpoints take that
too. A page of another site could send such a body without asking first, but a browser then states its origin,
which the guard refuses, and a body with the marks of a browser must be called JSON here as anywhere.
"""
