"""`GET /stats`: how busy the models are, for the page's figures."""

from pydantic import BaseModel
from starlette.responses import Response

from anespec.runtime.server.endpoint import Call, Endpoint
from anespec.runtime.service import ServiceLoad


class ModelStats(BaseModel):
    """Requests that wait, and sequences that run of those that can."""

    waiting: int
    active: int
    sequences: int

    @classmethod
    def of(cls, load: ServiceLoad) -> "ModelStats":
        """Of a service's load."""
        return cls(waiting=load.waiting, active=load.active, sequences=load.sequences)


class StatsAnswer(BaseModel):
    """The models in memory, by id."""

    models: dict[str, ModelStats]


async def stats(call: Call[None]) -> Response:
    """How busy the models are now."""
    loads = {name: ModelStats.of(model.load) for name, model in call.daemon.models.loaded.items()}
    return Response(StatsAnswer(models=loads).model_dump_json(), media_type="application/json")


ENDPOINT = Endpoint("GET", "/stats", "How busy the models are.", stats, answer=StatsAnswer)
