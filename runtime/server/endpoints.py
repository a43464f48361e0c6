"""All endpoints of the daemon."""

from anespec.runtime.server import health
from anespec.runtime.server.endpoint import Endpoint
from anespec.runtime.server.openai import completions, models_list
from anespec.runtime.server.page import endpoints as page

ENDPOINTS: tuple[Endpoint, ...] = (
    *health.ENDPOINTS,
    *models_list.ENDPOINTS,
    completions.ENDPOINT,
    *page.ENDPOINTS,
)
