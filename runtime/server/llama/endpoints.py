"""Serve llama-server's `/tokenize`, `/detokenize` and `/props`:

https://github.com/ggml-org/llama.cpp/tree/master/tools/server
"""

from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from anespec.runtime.server.answers.working import answer_work
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import as_json, json_answer
from anespec.runtime.server.models import Leased
from anespec.runtime.server.openai.models_list import card_of
from anespec.system.formatting import quoted

LONGEST_TEXT = 1 << 20
"""The most characters of a text, which take seconds to encode."""


class TokenizeBody(Body):
    """A text. `with_pieces` adds the text of each token."""

    content: str = Field(max_length=LONGEST_TEXT)
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    model: str | None = None


class Piece(BaseModel):
    """A token and its text; a list of its bytes if they are not valid UTF-8."""

    id: int
    piece: str | list[int]


class TokenizeAnswer(BaseModel):
    """The tokens of the text."""

    tokens: list[int] | list[Piece]


class DetokenizeBody(Body):
    """Tokens to decode."""

    tokens: list[int]
    model: str | None = None


class DetokenizeAnswer(BaseModel):
    """The text of the tokens."""

    content: str


class PropsAnswer(BaseModel):
    """The default model. `total_slots` is the number of sequences at a time, `n_ctx` the context of each in
    tokens."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_path: str
    chat_template: str
    modalities: dict[str, bool]
    build_info: str
    backend: str
    speculates: bool
    block: int


async def tokenize(call: Call[TokenizeBody]) -> Response:
    """Encode a text."""
    body = call.body

    def work(leased: Leased) -> bytes:
        tokenizer = leased.model.tokenizer
        ids = tokenizer.encode(body.content, add_special=body.add_special, parse_special=body.parse_special)
        if not body.with_pieces:
            return as_json({"tokens": ids}).encode()
        # JSON is written directly and cached per token: objects would take a hundred times the text's memory.
        written = {
            id: as_json({"id": id, "piece": _piece(tokenizer.piece(id, skip_special=False))}).encode()
            for id in set(ids)
        }
        return b'{"tokens":[' + b",".join([written[id] for id in ids]) + b"]}"

    return await answer_work(call, body.model, work)


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(call: Call[DetokenizeBody]) -> Response:
    """Decode tokens."""

    def work(leased: Leased) -> bytes:
        text = leased.model.tokenizer.decode(call.body.tokens, skip_special=False, continues=True)
        return as_json(DetokenizeAnswer(content=text)).encode()

    return await answer_work(call, call.body.model, work)


async def props(call: Call[None]) -> Response:
    """Describe a model in memory. A GET loads no model, since any web page can cause one."""
    models = call.daemon.models
    card = card_of(models, call.request.query_params.get("model") or None)
    model = models.loaded.get(card.id)
    if model is None:
        raise ApiError(
            400,
            f"the model {quoted(card.id)} is not loaded; a request for tokens or text loads it",
            "model_not_loaded",
            "model",
        )
    return json_answer(
        PropsAnswer(
            default_generation_settings={"n_ctx": model.context},
            total_slots=model.sequences,
            model_path=card.id,
            chat_template=model.chat_template or "",
            modalities={"vision": False, "audio": False},
            build_info=f"anespec {call.daemon.version}",
            backend=model.backend,
            speculates=model.speculates,
            block=model.manifest.block,
        )
    )


ENDPOINTS = (
    Endpoint("POST", "/tokenize", "The tokens of a text.", tokenize, TokenizeBody, TokenizeAnswer),
    Endpoint("POST", "/detokenize", "The text of tokens.", detokenize, DetokenizeBody, DetokenizeAnswer),
    Endpoint("GET", "/props", "What is served.", props, answer=PropsAnswer, query=("model",)),
)
