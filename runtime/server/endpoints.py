"""List all endpoints of the daemon."""

from anespec.runtime.server import health, openapi
from anespec.runtime.server.anthropic import messages
from anespec.runtime.server.http.endpoint import Endpoint
from anespec.runtime.server.llama import completion, endpoints
from anespec.runtime.server.ollama import chat as ollama_chat
from anespec.runtime.server.ollama import generate, listing, refused
from anespec.runtime.server.openai import chat, completions, models_list
from anespec.runtime.server.page import endpoints as page
from anespec.runtime.server.responses import respond

_SERVING: tuple[Endpoint, ...] = (
    *health.ENDPOINTS,
    *models_list.ENDPOINTS,
    completions.ENDPOINT,
    chat.ENDPOINT,
    *respond.ENDPOINTS,
    *messages.ENDPOINTS,
    ollama_chat.ENDPOINT,
    generate.ENDPOINT,
    *listing.ENDPOINTS,
    *refused.ENDPOINTS,
    *endpoints.ENDPOINTS,
    *completion.ENDPOINTS,
    *page.ENDPOINTS,
)

ENDPOINTS = (*_SERVING, openapi.describing(_SERVING))
