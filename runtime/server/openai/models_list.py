"""Serve `/v1/models`, the served models, and refuse `/v1/embeddings`."""

from typing import Literal

from pydantic import BaseModel
from starlette.responses import Response

from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import json_answer
from anespec.runtime.server.models import ModelCard, Models

REASON = "this daemon computes no embeddings: its artifacts end in a vocabulary's logits"


async def refuse_embeddings(call: Call[None]) -> Response:
    """Refuse the request, and say why."""
    # OpenAI's clients would retry after other statuses of the server.
    raise ApiError(
        501,
        f"{REASON}; use a server for embedding models",
        "not_implemented",
        headers={"x-should-retry": "false"},
    )


class ModelAnswer(BaseModel):
    """A model. `loaded`, `context` (tokens) and `checking` (how far its gates are, null where none are asked)
    are ours."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["anespec"]
    loaded: bool
    context: int | None
    checking: str | None

    @classmethod
    def of(cls, card: ModelCard) -> "ModelAnswer":
        """Return the answer for a model's card."""
        return cls(
            id=card.id,
            object="model",
            owned_by="anespec",
            created=card.created,
            loaded=card.loaded,
            context=card.context,
            checking=card.checking,
        )


class ModelsAnswer(BaseModel):
    """The list of served models."""

    object: Literal["list"]
    data: list[ModelAnswer]


async def list_models(call: Call[None]) -> Response:
    """Return the served models."""
    found = ModelsAnswer(object="list", data=[ModelAnswer.of(card) for card in call.daemon.models.cards])
    return json_answer(found)


def card_of(models: Models, name: str | None) -> ModelCard:
    """Return the card of the model of that name, or of the default; nothing is loaded for it.

    Raises:
        ApiError: there is no such model (404).
    """
    for card in models.cards:
        if name is None or card.id == name:
            return card
    raise ApiError(404, "there is no such model; /v1/models lists the models", "model_not_found", "model")


async def show_model(call: Call[None]) -> Response:
    """Return a served model."""
    return json_answer(ModelAnswer.of(card_of(call.daemon.models, call.request.path_params["name"])))


ENDPOINTS = (
    Endpoint("GET", "/v1/models", "The models that can be asked for.", list_models, answer=ModelsAnswer),
    Endpoint("GET", "/v1/models/{name:path}", "One of them.", show_model, answer=ModelAnswer),
    Endpoint("POST", "/v1/embeddings", "Not served.", refuse_embeddings, refuses=True),
)
