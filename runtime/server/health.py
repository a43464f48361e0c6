"""Serve the daemon's state: /livez, /health and /metrics."""

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from anespec.runtime.server.daemon import Phase
from anespec.runtime.server.http.endpoint import Call, Endpoint


async def live(call: Call[None]) -> Response:
    """Answer that the daemon runs."""
    return JSONResponse({"status": "ok"})


async def health(call: Call[None]) -> Response:
    """Answer whether requests are served now: 200, or 503 while the daemon loads models or ends.

    `checking` is the progress of the gates of a model that is being checked, if there is one.
    """
    phase = call.daemon.lifecycle.phase
    ready = phase is Phase.READY
    said = {"status": "ok" if ready else phase.value}
    progress = [model.checking for model in call.daemon.models.loaded.values() if model.checking]
    if progress:
        said["checking"] = progress[0]
    return JSONResponse(said, 200 if ready else 503)


async def metrics(call: Call[None]) -> Response:
    """Return the counts of the caller's requests; an administrator gets those of all requests."""
    # Writing the metrics takes a while: they have hundreds of lines.
    await call.share.turn()
    text = call.daemon.metrics.text(call.caller)
    call.share.pause()
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


ENDPOINTS = (
    Endpoint("GET", "/livez", "Whether the daemon runs.", live, is_open=True),
    Endpoint("GET", "/health", "Whether requests are served.", health, is_open=True),
    Endpoint("GET", "/metrics", "Counters for Prometheus.", metrics),
)
