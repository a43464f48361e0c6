"""Serve `/v1/completions`: continue prompts."""

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from anespec.runtime.engine.completion import Chunk, Summary, TextStream
from anespec.runtime.engine.requests import OutputToken
from anespec.runtime.options import LONGEST_REFERENCE, MOST_CHOICES
from anespec.runtime.server.answers.answering import Prepared, answer
from anespec.runtime.server.answers.conversing import settled
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError, grammar_named
from anespec.runtime.server.http.streams import DONE, EVENTS, event
from anespec.runtime.server.models import Leased
from anespec.runtime.server.openai.sampling_fields import Choices, ConstrainedFields, MostOrNoTokens
from anespec.runtime.server.openai.usage import Timings, Usage, finish_reason, timings_of, usage_of
from anespec.runtime.text.tokenizer import Tokenizer


class CompletionBody(ConstrainedFields):
    """A request: a prompt, or several, as texts or as token ids.

    With `echo` the answer begins with the prompt, and with `logprobs`, too, with those of its tokens.
    """

    model: str | None = None
    prompt: (
        str
        | list[int]
        | Annotated[list[str], Field(max_length=MOST_CHOICES)]
        | Annotated[list[list[int]], Field(max_length=MOST_CHOICES)]
    )
    max_tokens: MostOrNoTokens = 16
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool = False
    n: Choices = None
    best_of: int | None = None
    reference: str = Field(default="", max_length=LONGEST_REFERENCE)

    def prompts(self) -> list[str] | list[list[int]]:
        """Return the prompts as a list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        first = self.prompt[0] if self.prompt else None
        # pydantic has checked that all of them are of one type.
        return [self.prompt] if isinstance(first, int) or first is None else self.prompt  # type: ignore[return-value]


class Logprobs(BaseModel):
    """The logprobs of the tokens in this API's format; offsets are in characters.

    The first token of a prompt has none, since nothing precedes it.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One continuation, or a piece of it in a stream."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionAnswer(BaseModel):
    """The answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    timings: Timings | None = None


async def complete(call: Call[CompletionBody]) -> Response:
    """Continue the prompts."""
    body = call.body
    if body.best_of not in (None, body.n or 1):
        raise ApiError(400, "best_of other than n is not supported; leave it out", param="best_of")
    prompts, choices = body.prompts(), body.n or 1
    if body.max_tokens == 0 and choices > 1:
        raise ApiError(400, "n answers without a token are all the same; leave n out", param="n")
    if len(prompts) * choices > MOST_CHOICES:
        raise ApiError(
            400, f"the request has more than {MOST_CHOICES} continuations; send fewer prompts", param="prompt"
        )

    def prepare(leased: Leased) -> Prepared:
        model = leased.model
        said = body.options(
            max_tokens=body.max_tokens,
            logprobs=body.logprobs,
            reference=body.reference,
            choices=body.n,
            grammar=body.wanted_grammar,
            scores_prompt=body.echo and body.logprobs is not None,
        )
        options = settled(said, model)
        runs: list[TextStream] = []
        echoes: list[str] = []
        for prompt in prompts:
            ids = model.prompt_ids(prompt)
            runs += model.run(ids, options, call.caller)
            echo = prompt if isinstance(prompt, str) else model.tokenizer.decode(ids)
            echoes += [echo if body.echo else ""] * choices
        return Prepared(
            runs,
            _Writer(
                leased.id,
                model.tokenizer,
                echoes,
                # An empty prompt is refused when its run starts.
                [next(iter(run.prompt_ids), 0) for run in runs] if options.scores_prompt else [],
                body.logprobs is not None,
                body.includes_usage,
            ),
        )

    with grammar_named(body.grammar_field):
        return await answer(call, body.model, prepare, bool(body.stream), runs=len(prompts) * choices)


class _Writer:
    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        echoes: Sequence[str],
        firsts: Sequence[int],
        logprobs: bool,
        include_usage: bool,
    ) -> None:
        """`firsts` are the first tokens of the prompts, if these get logprobs."""
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._tokenizer = tokenizer
        self._echoes = echoes
        self._firsts = firsts
        self._logprobs = logprobs
        self._texts: dict[int, str] = {}
        self._include_usage = include_usage
        self._offsets = [0 if firsts else len(echo) for echo in echoes]

    def begin(self) -> Iterable[bytes]:
        for number, echo in enumerate(self._echoes):
            logprobs = self._logprobs_of((), number, self._first(number)) if self._firsts else None
            if echo or logprobs is not None:
                choice = CompletionChoice(index=number, text=echo, logprobs=logprobs, finish_reason=None)
                yield event(self._part(choice))

    def chunk(self, run: int, chunk: Chunk) -> Iterable[bytes]:
        logprobs = None
        if self._logprobs and chunk.token is not None:
            logprobs = self._logprobs_of([chunk.token], run)
        if chunk.text or logprobs is not None:
            yield event(
                self._part(
                    CompletionChoice(index=run, text=chunk.text, logprobs=logprobs, finish_reason=None)
                )
            )

    def end(self, summaries: Sequence[Summary]) -> Iterable[bytes]:
        for number, summary in enumerate(summaries):
            choice = CompletionChoice(
                index=number, text="", logprobs=None, finish_reason=finish_reason(summary)
            )
            part = self._part(choice)
            part.timings = timings_of(summary)
            yield event(part)
        if self._include_usage:
            part = self._part()
            part.usage = usage_of(summaries)
            yield event(part)
        yield DONE

    def failed(self, error: ApiError) -> Iterable[bytes]:
        yield event(error.answer())

    def whole(self, summaries: Sequence[Summary]) -> CompletionAnswer:
        choices = [
            CompletionChoice(
                index=number,
                text=self._echoes[number] + summary.text,
                logprobs=(
                    self._logprobs_of((*summary.given, *summary.tokens), number, self._first(number))
                    if self._logprobs
                    else None
                ),
                finish_reason=finish_reason(summary),
            )
            for number, summary in enumerate(summaries)
        ]
        found = self._part(*choices)
        found.usage, found.timings = usage_of(summaries), timings_of(summaries[0])
        return found

    def _part(self, *choices: CompletionChoice) -> CompletionAnswer:
        return CompletionAnswer(
            id=self._id,
            object="text_completion",
            created=self._created,
            model=self._model,
            choices=list(choices),
        )

    def _first(self, run: int) -> int | None:
        """Return the first token of a run's prompt, None if the prompt gets no logprobs."""
        return self._firsts[run] if self._firsts else None

    def _logprobs_of(self, tokens: Sequence[OutputToken], run: int, first: int | None = None) -> Logprobs:
        """Return the logprobs of tokens in a row, and before them the prompt's `first` token."""
        found = Logprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        if first is not None:
            self._add(found, run, first, None, None)
        for token in tokens:
            top: dict[str, float] = {}
            for each in token.top:
                # Tokens of parts of characters have the same text; the likeliest comes first.
                top.setdefault(self._text(each.token), each.logprob)
            self._add(found, run, token.id, token.logprob, top)
        return found

    def _add(
        self, found: Logprobs, run: int, id: int, logprob: float | None, top: dict[str, float] | None
    ) -> None:
        found.tokens.append(self._text(id))
        found.token_logprobs.append(logprob)
        found.top_logprobs.append(top)
        found.text_offset.append(self._offsets[run])
        # A special token is not part of the text.
        self._offsets[run] += len(self._tokenizer.decode([id], continues=True))

    def _text(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = self._tokenizer.decode([token], skip_special=False, continues=True)
        return self._texts[token]


ENDPOINT = Endpoint(
    "POST",
    "/v1/completions",
    "Continue prompts.",
    complete,
    body=CompletionBody,
    answer=CompletionAnswer,
    streams=EVENTS,
)
