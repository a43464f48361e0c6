"""All endpoints of the daemon."""

from anespec.runtime.server import health
from anespec.runtime.server.endpoint import Endpoint
from anespec.runtime.server.openai import chat, completions, models_list

ENDPOINTS: tuple[Endpoint, ...] = (
    *health.ENDPOINTS,
    *models_list.ENDPOINTS,
    completions.ENDPOINT,
    chat.ENDPOINT,
)
