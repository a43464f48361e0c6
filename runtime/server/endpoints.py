"""All endpoints of the daemon."""

from anespec.runtime.server import health, llama_completion, llama_server, openapi
from anespec.runtime.server.endpoint import Endpoint
from anespec.runtime.server.ollama import endpoints as ollama
from anespec.runtime.server.openai import chat, completions, embeddings, models_list
from anespec.runtime.server.page import endpoints as page
from anespec.runtime.server.responses import respond

_SERVING: tuple[Endpoint, ...] = (
    *health.ENDPOINTS,
    *models_list.ENDPOINTS,
    completions.ENDPOINT,
    chat.ENDPOINT,
    embeddings.ENDPOINT,
    *respond.ENDPOINTS,
    *ollama.ENDPOINTS,
    *llama_server.ENDPOINTS,
    *llama_completion.ENDPOINTS,
    *page.ENDPOINTS,
)

ENDPOINTS = (*_SERVING, openapi.describing(_SERVING))
