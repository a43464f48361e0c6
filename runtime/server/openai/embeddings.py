"""`/v1/embeddings`: there are none, and clients are told why."""

from starlette.responses import Response

from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError

REASON = "this daemon computes no embeddings: its artifacts end in a vocabulary's logits"


async def refuse_embeddings(call: Call[None]) -> Response:
    """Say why."""
    # OpenAI's clients would try again after other answers of this kind.
    raise ApiError(
        501,
        f"{REASON}; use a server for embedding models",
        "not_implemented",
        headers={"x-should-retry": "false"},
    )


ENDPOINT = Endpoint("POST", "/v1/embeddings", "Not served.", refuse_embeddings, refuses=True)
