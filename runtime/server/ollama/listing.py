"""Serve Ollama's endpoints about models: /api/tags, /api/ps, /api/show and /api/version."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import json_answer
from anespec.runtime.server.models import ModelCard, ServingModel
from anespec.runtime.server.ollama.answers import OllamaError, ollama_error
from anespec.runtime.server.ollama.fields import known_as
from anespec.runtime.server.tools.families import takes_tools
from anespec.runtime.text.reasoning import TAGS

FORMAT = "anespec"
NEVER = datetime(9999, 12, 31, tzinfo=UTC)
"""The expiry time of a model in memory, since it has none."""


class Details(BaseModel):
    """The properties of a model; empty unless it is in memory."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ModelEntry(BaseModel):
    """A model. `digest` changes with its artifact; `size` is 0 unless it is in memory."""

    name: str
    model: str
    modified_at: datetime
    size: int
    digest: str
    details: Details


class TagsAnswer(BaseModel):
    """The list of served models."""

    models: list[ModelEntry]


class LoadedEntry(BaseModel):
    """A model in memory; the size in GPU memory is always 0."""

    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: datetime
    size_vram: int
    context_length: int


class LoadedAnswer(BaseModel):
    """The models in memory."""

    models: list[LoadedEntry]


class ShowBody(Body):
    """The name of a model; older clients send `name`."""

    model: str | None = None
    name: str | None = None


class ShowAnswer(BaseModel):
    """A model. Properties that need a loaded model are empty otherwise."""

    modelfile: str
    parameters: str
    template: str
    license: str
    modified_at: datetime
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]


class VersionAnswer(BaseModel):
    """The version of this program."""

    version: str


async def tags(call: Call[None]) -> Response:
    """Return the served models."""
    models = call.daemon.models
    return json_answer(TagsAnswer(models=[_entry(card, models.loaded) for card in models.cards]))


async def loaded(call: Call[None]) -> Response:
    """Return the models in memory."""
    models = call.daemon.models
    return json_answer(
        LoadedAnswer(
            models=[
                LoadedEntry(
                    name=card.id,
                    model=card.id,
                    size=_bytes(models.loaded[card.id]),
                    digest=_digest(card),
                    details=_details(models.loaded[card.id]),
                    expires_at=NEVER,
                    size_vram=0,
                    context_length=models.loaded[card.id].context,
                )
                for card in models.cards
                if card.id in models.loaded
            ]
        )
    )


async def show(call: Call[ShowBody]) -> Response:
    """Describe a model without loading it."""
    models, name = call.daemon.models, call.body.model or call.body.name
    if not name:
        raise ApiError(400, "model is missing; name one")
    card = next((card for card in models.cards if card.id == known_as(models, name)), None)
    if card is None:
        raise ApiError(404, "there is no such model; /api/tags lists the models", param="model")
    model = models.loaded.get(card.id)
    template = (model.chat_template or "") if model is not None else ""
    return json_answer(
        ShowAnswer(
            modelfile="",
            parameters="",
            template=template,
            license="",
            modified_at=_modified(card),
            details=_details(model),
            model_info=_info(model) if model is not None else {},
            capabilities=_capabilities(template),
        )
    )


async def version(call: Call[None]) -> Response:
    """Return the version of this program."""
    return json_answer(VersionAnswer(version=call.daemon.version))


def _entry(card: ModelCard, loaded: Mapping[str, ServingModel]) -> ModelEntry:
    model = loaded.get(card.id)
    return ModelEntry(
        name=card.id,
        model=card.id,
        modified_at=_modified(card),
        size=0 if model is None else _bytes(model),
        digest=_digest(card),
        details=_details(model),
    )


def _modified(card: ModelCard) -> datetime:
    return datetime.fromtimestamp(card.created, UTC)


def _digest(card: ModelCard) -> str:
    return hashlib.sha256(f"{card.id} {card.created}".encode()).hexdigest()


def _bytes(model: ServingModel) -> int:
    return sum(shard.bytes for shard in model.manifest.shards)


def _details(model: ServingModel | None) -> Details:
    source = model.manifest.source if model is not None else None
    family = source.architecture if source is not None else ""
    return Details(
        parent_model="",
        format=FORMAT,
        family=family,
        families=[family] if family else [],
        parameter_size="",
        quantization_level=source.quantisation if source is not None else "",
    )


def _info(model: ServingModel) -> dict[str, Any]:
    """Return the properties under the names of GGUF metadata."""
    sizes, family = model.manifest.hyperparameters, model.manifest.source.architecture
    return {
        "general.architecture": family,
        f"{family}.context_length": model.context,
        f"{family}.block_count": sizes.layers,
        f"{family}.embedding_length": sizes.d,
        f"{family}.attention.head_count": sizes.heads,
        f"{family}.attention.head_count_kv": sizes.kv_heads,
        f"{family}.vocab_size": sizes.vocabulary,
    }


def _capabilities(template: str) -> list[str]:
    found = ["completion"]
    if takes_tools(template):
        found.append("tools")
    if any(tag in template for tag, _ in TAGS):
        found.append("thinking")
    return found


def _endpoint(
    method: str, path: str, summary: str, serve: Any, answer: type[BaseModel], body: type[Body] | None = None
) -> Endpoint:
    return Endpoint(
        method, path, summary, serve, body, answer, refusal=ollama_error, refused=OllamaError, as_curl=True
    )


ENDPOINTS = (
    _endpoint("GET", "/api/tags", "The models, as Ollama lists them.", tags, TagsAnswer),
    _endpoint("GET", "/api/ps", "The models in memory, as Ollama lists them.", loaded, LoadedAnswer),
    _endpoint("POST", "/api/show", "One model, as Ollama shows it.", show, ShowAnswer, ShowBody),
    _endpoint("GET", "/api/version", "This program's version.", version, VersionAnswer),
)
