"""All endpoints of Ollama's API."""

from anespec.runtime.server.ollama import chat, generate, listing, refused

ENDPOINTS = (chat.ENDPOINT, generate.ENDPOINT, *listing.ENDPOINTS, *refused.ENDPOINTS)
