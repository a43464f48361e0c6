"""`GET /stats`: how busy the models are, for the page's figures."""

from pydantic import BaseModel
from starlette.responses import Response

from anespec.runtime.engine.requests import Principal
from anespec.runtime.passes import RowKind
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.streams import json_answer
from anespec.runtime.server.models import ServingModel


class ModelStats(BaseModel):
    """Requests that wait, sequences that run of those that can, and what was run since the model was loaded.

    `rows` of passes by kind, pads not counted; `accepted` draft rows were right. `checking` is how far its
    gates are, where they are asked; `has_template` whether it has a chat template.
    """

    waiting: int
    active: int
    sequences: int
    passes: int
    rows: dict[str, int]
    accepted: int
    checking: str | None
    has_template: bool

    @classmethod
    def of(cls, model: ServingModel, caller: Principal) -> "ModelStats":
        """Of a model, as far as a caller may know of it."""
        load = model.load_of(caller)
        return cls(
            waiting=load.waiting,
            active=load.active,
            sequences=load.sequences,
            passes=load.passes,
            rows={rows.kind.value: rows.count for rows in load.rows if rows.kind is not RowKind.PAD},
            accepted=load.accepted,
            checking=model.checking,
            has_template=model.chat_template is not None,
        )


class StatsAnswer(BaseModel):
    """The models in memory, by id."""

    models: dict[str, ModelStats]


async def stats(call: Call[None]) -> Response:
    """How busy the models are now with what the caller asked for, or for an administrator with all."""
    models = call.daemon.models.loaded
    return json_answer(
        StatsAnswer(models={name: ModelStats.of(model, call.caller) for name, model in models.items()})
    )


ENDPOINT = Endpoint("GET", "/stats", "How busy the models are.", stats, answer=StatsAnswer)
