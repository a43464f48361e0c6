"""Serve llama-server's `/completion` and `/infill`: continue a prompt, or fill a gap in a text.

Fields and defaults are those of llama-server:

https://github.com/ggml-org/llama.cpp/tree/master/tools/server
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import AliasChoices, BaseModel, Field
from starlette.responses import Response

from anespec.runtime.engine.completion import Chunk, Summary
from anespec.runtime.options import GenerationOptions
from anespec.runtime.sampling.parameters import SamplingParameters
from anespec.runtime.server.answers.answering import Prepared, answer
from anespec.runtime.server.answers.conversing import settled
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError, grammar_named
from anespec.runtime.server.http.streams import EVENTS, event
from anespec.runtime.server.models import Leased, ServingModel
from anespec.runtime.server.openai.sampling_fields import ConstrainedFields
from anespec.runtime.server.openai.usage import Timings, finish_reason, timings_of
from anespec.runtime.text.special_tokens import InfillIds
from anespec.runtime.text.tokenizer import Tokenizer, require_fitting
from anespec.system.errors import RequestError

# The prompt of `/infill` for filling a gap, in llama-server's format:
#
#     [repository] name  ([file] name, text)…  [file] name  [prefix] before, begun  [suffix] after  [middle]
#
# https://github.com/ggml-org/llama.cpp/tree/master/tools/server

MOST_AROUND = 2048
"""The most tokens around the gap, three quarters of them before it; at most half of the context is used."""

REPOSITORY, FILE = "myproject\n", "filename\n"
"""The default names of the repository and the file."""

SNIPPET = "\n\n--- snippet ---\n\n"
"""The separator of files for a model that has no token for it."""

MARKS = 4
"""The number of special tokens at the prompt's beginning and around the gap."""

SPARE = 16
"""Tokens that are encoded in addition to the used ones, since the tokens at a cut may differ from those of
the whole text."""


@dataclass(frozen=True)
class Extra:
    """A file in addition to the one with the gap."""

    name: str
    text: str


@dataclass(frozen=True)
class Gap:
    """The texts before and after a gap, the beginning of its filling (`begun`), and other files, the nearest
    last."""

    before: str
    after: str
    begun: str = ""
    extras: Sequence[Extra] = ()


def infill_prompt(tokenizer: Tokenizer, gap: Gap, context: int, answer: int) -> list[int]:
    """Return the token ids of the prompt, with the texts cut to fit a `context` with `answer` new tokens.

    Raises:
        RequestError: the model has no infill tokens, a text is not valid Unicode, or `begun` does not fit.
    """
    ids = tokenizer.infill_ids
    if ids is None:
        raise RequestError("this model's vocabulary has no tokens to fill a gap; send a plain prompt")
    around = min(MOST_AROUND, context // 2)
    require_fitting(gap.begun, tokenizer, context)
    begun = tokenizer.encode(gap.begun, add_special=False)
    after = _encoded(tokenizer, gap.after, around)[: max(0, around // 4 - 2 - len(begun))]
    before = _last(tokenizer, gap.before, 3 * (around // 4))
    extras = _extras(tokenizer, ids, gap.extras, max(0, context - around - 2 * answer - MARKS))
    first = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
    return [*extras, *first, ids.prefix, *before, *begun, ids.suffix, *after, ids.middle]


def _extras(tokenizer: Tokenizer, ids: InfillIds, extras: Sequence[Extra], most: int) -> list[int]:
    """Return the last tokens of the other files; only as much text as needed is encoded."""
    found = [] if ids.file is None else [ids.file, *_encoded(tokenizer, FILE, most)]
    for extra in reversed(extras):
        if len(found) >= most:
            break
        name = SNIPPET if ids.file is None else f"{extra.name}\n"
        head = [] if ids.file is None else [ids.file]
        found = [*head, *_encoded(tokenizer, name, most), *_last(tokenizer, extra.text, most), *found]
    else:
        if ids.repository is not None:
            found = [ids.repository, *_encoded(tokenizer, REPOSITORY, most), *found]
    return found[len(found) - most :] if len(found) > most else found


def _encoded(tokenizer: Tokenizer, text: str, most: int) -> list[int]:
    """Return a text's first tokens; a long text is cut, but to no fewer than `most` tokens."""
    return tokenizer.encode(text[: (most + SPARE) * tokenizer.longest_token], add_special=False)


def _last(tokenizer: Tokenizer, text: str, most: int) -> list[int]:
    """Return a text's last tokens, at most `most`."""
    ids = tokenizer.encode(text[-(most + SPARE) * tokenizer.longest_token :], add_special=False)
    return ids[max(0, len(ids) - most) :]


MOST_FILES = 1024
MOST_SAMPLERS = 64

FieldsT = TypeVar("FieldsT", bound="LlamaFields")

_OFF: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "top_k": {"top_k": 0},
        "top_p": {"top_p": 1.0},
        "min_p": {"min_p": 0.0},
        "typ_p": {"typical_p": 1.0},
        "temperature": {"temperature": 1.0},
        "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    }
)
"""The values with which each of llama-server's samplers is off."""

_OLD_NAMES = MappingProxyType({"typical_p": "typ_p", "typical": "typ_p", "temp": "temperature"})

_FILTERS = SamplingParameters(top_k=40, top_p=0.95, min_p=0.05)
"""llama-server's defaults, used if neither the request nor the model sets a value."""


class LlamaFields(ConstrainedFields):
    """The options of a continuation. A negative `n_predict` or `seed` means none, as in llama-server; with
    0 the prompt is computed, and nothing follows.

    Samplers that are missing in `samplers` are off; their order is fixed, and `infill` does nothing. Unlike
    in llama-server, `t_max_predict_ms` does not wait for the end of a line.
    """

    limit: ClassVar[str] = "n_predict"

    model: str | None = None
    samplers: list[str] | None = Field(default=None, max_length=MOST_SAMPLERS)
    t_max_predict_ms: float | None = None
    n_predict: int = Field(default=-1, validation_alias=AliasChoices("n_predict", "max_tokens"))

    @property
    def chosen(self) -> GenerationOptions:
        """Return the fields as options. Raises ApiError or RequestError if they are invalid."""
        longest = self.n_predict if self.n_predict >= 0 else None
        chosen = self.without_seed.options(max_tokens=longest, grammar=self.wanted_grammar)
        if self.t_max_predict_ms is not None and self.t_max_predict_ms > 0:
            chosen = chosen.with_changes(output_seconds=max(self.t_max_predict_ms, 1.0) / 1000)
        if self.samplers is None:
            return chosen
        named = {_OLD_NAMES.get(name, name) for name in self.samplers}
        off = {
            key: value for name, values in _OFF.items() if name not in named for key, value in values.items()
        }
        return chosen.with_changes(**off)

    @property
    def without_seed(self) -> Self:
        """Remove a negative seed, which means none."""
        no_seed = self.seed is not None and self.seed < 0
        return self.model_copy(update={"seed": None}) if no_seed else self


class LlamaBody(LlamaFields):
    """A prompt, as a text or as token ids."""

    prompt: str | list[int]


class ExtraFile(Body):
    """A file in addition to the one with the gap."""

    filename: str = "tmp"
    text: str = ""


class InfillBody(LlamaFields):
    """The text before a gap, the text after it, the beginning of the filling (`prompt`), and other files.

    Text that exceeds the context is cut: the prefix and the files at the beginning, the suffix at the end.
    """

    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] = Field(default_factory=list, max_length=MOST_FILES)
    prompt: str = ""

    @property
    def gap(self) -> Gap:
        """Return the gap with the texts around it."""
        extras = [Extra(file.filename, file.text) for file in self.input_extra]
        return Gap(self.input_prefix, self.input_suffix, self.prompt, extras)


class LlamaAnswer(BaseModel):
    """The continuation, or a piece of it in a stream. The last piece has `stop`, its reason, and the
    timings."""

    index: Literal[0]
    content: str
    tokens: list[int]
    stop: bool
    model: str = ""
    stop_type: Literal["eos", "limit", "word"] = "eos"
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    tokens_cached: int = 0
    truncated: bool = False
    timings: Timings | None = None


async def complete(call: Call[LlamaBody]) -> Response:
    """Continue a prompt."""
    prompt = call.body.prompt
    return await _continued(call, lambda model: model.prompt_ids(prompt))


async def infill(call: Call[InfillBody]) -> Response:
    """Fill a gap."""
    body = call.body

    def prompt(model: ServingModel) -> Sequence[int]:
        if model.tokenizer.infill_ids is None:
            message = "this model cannot fill gaps: its vocabulary has no tokens that mark one"
            raise ApiError(501, message, "not_supported")
        return infill_prompt(model.tokenizer, body.gap, model.context, max(0, body.n_predict))

    return await _continued(call, prompt)


async def _continued(call: Call[FieldsT], prompt: Callable[[ServingModel], Sequence[int]]) -> Response:
    body = call.body
    options = body.chosen

    def prepare(leased: Leased) -> Prepared:
        model = leased.model
        chosen = settled(options, model, _FILTERS)
        return Prepared(model.run(prompt(model), chosen, call.caller), _Writer(leased.id, model.tokenizer))

    with grammar_named(body.grammar_field):
        return await answer(call, body.model, prepare, bool(body.stream))


class _Writer:
    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer

    def begin(self) -> Iterable[bytes]:
        return ()

    def chunk(self, run: int, chunk: Chunk) -> Iterable[bytes]:
        tokens = [] if chunk.token is None else [chunk.token.id]
        yield event(LlamaAnswer(index=0, content=chunk.text, tokens=tokens, stop=False))

    def end(self, summaries: Sequence[Summary]) -> Iterable[bytes]:
        yield event(self._last("", [], summaries[0]))

    def failed(self, error: ApiError) -> Iterable[bytes]:
        yield event(error.answer())

    def whole(self, summaries: Sequence[Summary]) -> LlamaAnswer:
        return self._last(summaries[0].text, summaries[0].output_ids, summaries[0])

    def _last(self, content: str, tokens: Sequence[int], summary: Summary) -> LlamaAnswer:
        counts = summary.statistics
        return LlamaAnswer(
            index=0,
            content=content,
            tokens=list(tokens),
            stop=True,
            model=self._model,
            stop_type=self._why(summary),
            tokens_predicted=counts.output_tokens,
            tokens_evaluated=counts.prompt_tokens,
            tokens_cached=counts.reused_tokens,
            truncated=False,
            timings=timings_of(summary),
        )

    def _why(self, summary: Summary) -> Literal["eos", "limit", "word"]:
        if finish_reason(summary) == "length":
            return "limit"
        # The tokens of a stop string count, but its text is not shown.
        return "eos" if self._tokenizer.decode(summary.output_ids, continues=True) == summary.text else "word"


ENDPOINTS = (
    Endpoint(
        "POST",
        "/completion",
        "Continue a prompt, as llama-server does.",
        complete,
        body=LlamaBody,
        answer=LlamaAnswer,
        streams=EVENTS,
    ),
    Endpoint(
        "POST",
        "/infill",
        "Fill a gap in a text, as llama-server does.",
        infill,
        body=InfillBody,
        answer=LlamaAnswer,
        streams=EVENTS,
    ),
)
