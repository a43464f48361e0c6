"""The page's endpoints: its files need no key, its requests do."""

from starlette.responses import Response

from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.page import stats
from anespec.runtime.server.page.assets import INDEX, assets


async def show_page(call: Call[None]) -> Response:
    """The page itself."""
    return assets()[INDEX].response(call.request.headers.get("if-none-match", ""))


async def show_file(call: Call[None]) -> Response:
    """A file that the page is made of."""
    found = assets().get(call.request.path_params["name"])
    if found is None:
        raise ApiError(404, "the page has no such file", "not_found")
    return found.response(call.request.headers.get("if-none-match", ""))


ENDPOINTS = (
    Endpoint("GET", "/", "A page to chat on.", show_page, is_open=True, is_kept=True),
    Endpoint("GET", "/page/{name:path}", "A file of that page.", show_file, is_open=True, is_kept=True),
    stats.ENDPOINT,
)
