"""What llama-server's clients ask beside OpenAI's API: tokens of a text, and what the server is.

https://github.com/ggml-org/llama.cpp/tree/master/tools/server
"""

import asyncio
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from anespec.manifests.formatting import quoted
from anespec.runtime.server.bodies import Body
from anespec.runtime.server.endpoint import Call, Endpoint
from anespec.runtime.server.errors import ApiError
from anespec.runtime.server.models import Leased
from anespec.runtime.server.openai.models_list import card_of
from anespec.runtime.server.streams import json_answer

LONGEST_TEXT = 1 << 20
"""Characters. It takes seconds to encode so many."""


class TokenizeBody(Body):
    """A text. `with_pieces`: each token's own text, too."""

    content: str = Field(max_length=LONGEST_TEXT)
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    model: str | None = None


class Piece(BaseModel):
    """A token and its text; its bytes where they are no text of their own."""

    id: int
    piece: str | list[int]


class TokenizeAnswer(BaseModel):
    """The text's tokens."""

    tokens: list[int] | list[Piece]


class DetokenizeBody(Body):
    """Tokens."""

    tokens: list[int]
    model: str | None = None


class DetokenizeAnswer(BaseModel):
    """Their text."""

    content: str


class PropsAnswer(BaseModel):
    """What is served by default. `total_slots` are sequences that run at a time, `n_ctx` tokens of each."""

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
    """Turn a text into tokens."""
    body = call.body

    def work(leased: Leased) -> TokenizeAnswer:
        tokenizer = leased.model.tokenizer
        ids = tokenizer.encode(body.content, add_special=body.add_special, parse_special=body.parse_special)
        if not body.with_pieces:
            return TokenizeAnswer(tokens=ids)
        return TokenizeAnswer(
            tokens=[Piece(id=id, piece=_piece(tokenizer.piece(id, skip_special=False))) for id in ids]
        )

    async with call.daemon.models.lease(body.model) as leased, call.daemon.preparations.thread(call.caller):
        return json_answer(await asyncio.to_thread(work, leased))


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(call: Call[DetokenizeBody]) -> Response:
    """Turn tokens into their text."""
    async with (
        call.daemon.models.lease(call.body.model) as leased,
        call.daemon.preparations.thread(call.caller),
    ):
        decode = leased.model.tokenizer.decode
        text = await asyncio.to_thread(decode, call.body.tokens, skip_special=False, continues=True)
        return json_answer(DetokenizeAnswer(content=text))


async def props(call: Call[None]) -> Response:
    """Say what is served, of a model in memory: a GET loads none, as any page may have one sent."""
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
