"""The options of loading and of generating.

Declared once for Python, the command line and JSON lines.
"""

import os
import secrets
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from anespec.manifests.weight_choice import WeightChoice, read_choice
from anespec.runtime.backends import AUTO, BACKENDS
from anespec.runtime.sampling.parameters import SamplingParameters
from anespec.system.errors import RequestError
from anespec.system.formatting import listed, quoted
from anespec.system.options import Flag, Options, read_size

if TYPE_CHECKING:
    from anespec.runtime.backends.worker.sharing import WorkerLimits

DRAFTER_CHOICES = ("none", "auto", "mix", "lookup", "mod", "datastore", "recycle", "jacobi")
FORMER_DRAFTERS = (
    ("suffix", "suffix is no draft source any more; use auto, which drafts better for every kind of text"),
)
GATES_VARIABLE = "ANESPEC_GATES"
MOD_MATCH = 24
MOD_ENTRIES = 4 << 20
LONGEST_MATCH = 64
"""Tokens that lookup compares at most."""

MOST_THREADS = 4 * (os.cpu_count() or 1)
"""Far more threads than processors wait for one another: a pass then takes minutes."""

LONGEST_PASS = 86400.0
"""Seconds: a day."""

MOST_CHOICES = 128

MOST_STOPS = 256
"""Each is looked for at every token."""

LONGEST_REFERENCE = 1 << 18
"""Characters. No pass runs while a reference is indexed, about a second for some hundred thousand tokens."""


USUAL_MEMORY = 32_000_000
"""Bytes that drafting remembers a tenant in."""

NOT_KEPT = Path(os.devnull)
"""The folder of a memory that no file is written of."""


def _or_none(value: Any) -> Any:
    """The folder that a person calls none."""
    return NOT_KEPT if str(value) == "none" else value


def _known_drafter(name: str) -> str:
    if name in DRAFTER_CHOICES:
        return name
    unknown = f"drafter is {quoted(name)}; it must be {listed(DRAFTER_CHOICES, 'or')}"
    raise RequestError(dict(FORMER_DRAFTERS).get(name, unknown))


def _or_endless(value: Any) -> Any:
    """Accept -1 for no limit, as llama.cpp's programs do."""
    return None if value in (-1, "-1") else value


def _listed(value: Any) -> Any:
    """One text, or any sequence of them, as a tuple."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _require_texts(stops: tuple[str, ...]) -> tuple[str, ...]:
    if "" in stops:
        raise RequestError("a stop string is empty; leave it out or give it a character")
    return stops


class BackendOptions(Options):
    """The backend that runs the shards, and its number of threads."""

    backend: Annotated[str, Flag(choices=(AUTO, *BACKENDS))] = Field(
        default="auto",
        description="Who executes: openvino, the fast one on processors; torch, every operation rounded; "
        "torch-flush, the same but that subnormal fp16 numbers are zero, as they may be to a "
        "Neural Engine; coreml, which is Core ML with the Neural Engine, or coreml-cpu without "
        "it; worker, which is Core ML in native processes (anespec worker build). auto is "
        "worker, else coreml, on a Mac that has a Neural Engine, else openvino.",
    )
    threads: Annotated[int | None, Flag(default="all")] = Field(
        default=None, ge=1, le=MOST_THREADS, description="Processor threads."
    )
    worker_budget: Annotated[int | None, BeforeValidator(read_size), Flag(metavar="BYTES", default="3GB")] = (
        Field(
            default=None,
            ge=1,
            description="Weights in one native worker, as in 2GB; more go to more workers.",
        )
    )
    worker_timeout: Annotated[float | None, Flag(default="600")] = Field(
        default=None,
        gt=0,
        le=LONGEST_PASS,
        description="Seconds of a pass after which a native worker is ended and started again.",
    )
    worker_loading: Annotated[
        Literal["together", "in-turn"] | None,
        Flag(choices=("together", "in-turn"), default="together where memory is 16 GB or more"),
    ] = Field(
        default=None,
        description="Whether native workers load their shards together or one after another (in-turn).",
    )
    verify: bool = Field(
        default=False,
        description="Read all files for their hashes, also those that are the same to the file system.",
    )

    @property
    def workers(self) -> "WorkerLimits":
        """The limits of native workers."""
        from anespec.runtime.backends.worker.sharing import BUDGET, PASS_SECONDS, WorkerLimits

        return WorkerLimits(
            self.worker_budget or BUDGET, self.worker_timeout or PASS_SECONDS, loading=self.worker_loading
        )


class WhenGates(StrEnum):
    """When to run the gates of a model without verdicts here: before anything else, in the background
    (afterwards for one answer of `generate` or `run`), or not at all."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


def usual_gates() -> WhenGates | None:
    """Return the choice in the environment; None if there is none.

    Raises:
        RequestError: it is none of the words.
    """
    said = os.environ.get(GATES_VARIABLE)
    if not said:
        return None
    try:
        return WhenGates(said)
    except ValueError:
        raise RequestError(
            f"{GATES_VARIABLE} is {quoted(said)}; it must be {listed(list(WhenGates), 'or')}"
        ) from None


class LoadOptions(BackendOptions):
    """The options of loading a model.

    `context`, `sequences` and `weights` set how a GGUF is converted; an artifact with other values is
    refused.
    """

    context: Annotated[int | None, Flag(default="that of convert")] = Field(
        default=None, ge=1, description="Tokens of the context that a GGUF is converted with."
    )
    sequences: Annotated[int | None, Flag(default="1, to serve 4")] = Field(
        default=None, ge=1, description="How many sequences of a GGUF can run at a time."
    )
    weights: Annotated[
        WeightChoice | None,
        BeforeValidator(read_choice),
        Flag(metavar="FORMAT[,KIND=FORMAT…]", default="int8-channel"),
    ] = Field(default=None, description="How a GGUF's weights are stored, as `convert --weights` takes it.")
    gates: Annotated[WhenGates | None, Flag(default=f"later, or what {GATES_VARIABLE} says")] = Field(
        default=None,
        description="When to run the gates of a model without verdicts here: now, before the first request; "
        "later, in the background, without drafts until then (for one answer, in a terminal: after it); "
        "never.",
    )
    drafter: Annotated[
        str, AfterValidator(_known_drafter), Flag(choices=DRAFTER_CHOICES, former=FORMER_DRAFTERS)
    ] = Field(
        default="auto",
        description="The source of drafts. mix predicts from many kinds of context, in this text and in "
        "earlier requests, weighted by past accuracy; auto adds the candidates of recycle, jacobi and a "
        "datastore. lookup copies the tokens after the longest earlier match; mod is llama.cpp's ngram-mod;"
        " datastore copies from a corpus; recycle uses the model's own earlier predictions after the same "
        "tokens; jacobi lets free rows continue the last pass's guesses (lookahead decoding), and stores "
        "their predictions.",
    )
    lookup_max: int = Field(
        default=16, ge=1, le=LONGEST_MATCH, description="The longest match that lookup looks for, in tokens."
    )
    lookup_min: int = Field(
        default=1, ge=1, le=LONGEST_MATCH, description="The shortest match that lookup copies from."
    )
    lookup_choose: Annotated[Literal["recent", "leftmost"], Flag(choices=("recent", "leftmost"))] = Field(
        default="recent", description="Which of several matches lookup takes."
    )
    mod_match: int = Field(
        default=MOD_MATCH,
        ge=1,
        le=LONGEST_MATCH,
        description="Tokens that mod hashes (llama.cpp's --spec-ngram-mod-n-match).",
    )
    mod_size: int = Field(
        default=MOD_ENTRIES, ge=1 << 10, le=1 << 28, description="Entries of mod's table, of 4 bytes each."
    )
    datastore: Annotated[Path | None, Flag(metavar="FILE", default="none")] = Field(
        default=None, description="The corpus that drafts are copied from (anespec datastore build)."
    )
    draft_memory: Annotated[
        Path | None, BeforeValidator(_or_none), Flag(metavar="DIR|none", default="anespec's cache folder")
    ] = Field(
        default=None,
        description="Folder of the draft memory, which holds what drafting learns from requests, including "
        "their texts, for each tenant (API key) separately; none keeps it in RAM only.",
    )
    draft_memory_size: Annotated[int, BeforeValidator(read_size), Flag(metavar="BYTES")] = Field(
        default=USUAL_MEMORY,
        ge=1_000_000,
        le=1_000_000_000,
        description="Size of the draft memory for each tenant, as in 32MB.",
    )
    chat_template: Annotated[Path | None, Flag(metavar="NAME|FILE", default="the model's own")] = Field(
        default=None,
        description="The chat template that turns messages into a prompt: a file with a Jinja template, or "
        "one of chatml, gemma, llama2, llama3, mistral, phi3; plain, lines of User: and Assistant:, is for "
        "models without turns.",
    )
    prompt_gate: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Draft only if at least this share of a prompt's 3-grams occur earlier in it.",
    )
    queue: Annotated[int | None, Flag(shown=False)] = Field(
        default=None, ge=1, description="Requests that may wait; more are refused."
    )

    @property
    def when_gates(self) -> WhenGates:
        """The option's value, else the environment's, else later.

        Raises:
            RequestError: the environment says something else.
        """
        return self.gates or usual_gates() or WhenGates.LATER

    allow_inexact: bool = Field(default=False, description="Speculate even if it may change the text.")
    allow_special: bool = Field(
        default=False,
        description="Encode a special token that is written out in a prompt, or in a message or a tool of a "
        "conversation, as that token: then any author of a text can forge roles. By default it is text.",
    )


class GenerationOptions(SamplingParameters):
    """How one prompt is continued. The defaults are greedy.

    `max_tokens` of None, or -1, means up to the context's end. Choice number i is sampled with `seed` + i.
    """

    max_tokens: Annotated[
        int | None, BeforeValidator(_or_endless), Flag(names=("-n", "--max-tokens"), metavar="N")
    ] = Field(
        default=128,
        ge=1,
        description="Output length; -1 goes on until the model ends or the context is full.",
    )
    stop: Annotated[
        tuple[str, ...], BeforeValidator(_listed), AfterValidator(_require_texts), Flag(multiple=True)
    ] = Field(
        default=(), max_length=MOST_STOPS, description="End before this text; may be given several times."
    )
    ignore_eos: bool = Field(default=False, description="Go on past the model's end tokens.")
    speculate: Annotated[bool, Flag(shown=False)] = Field(
        default=True, description="Fill rows with guesses, where that provably changes no token."
    )
    reference: Annotated[str, Flag(shown=False)] = Field(
        default="",
        max_length=LONGEST_REFERENCE,
        description="A text that the output may repeat: drafts are copied from it, too.",
    )
    show_special: Annotated[tuple[str, ...], BeforeValidator(_listed), Flag(shown=False)] = Field(
        default=(),
        max_length=MOST_STOPS,
        description="Special tokens that the text shows where the output has them.",
    )
    choices: int = Field(default=1, ge=1, le=MOST_CHOICES, description="How many continuations.")

    def ending_at(self, ends: tuple[str, ...]) -> Self:
        """The same, with further texts to end before."""
        return self.with_changes(stop=(*self.stop, *ends)) if ends else self

    @property
    def sampling(self) -> SamplingParameters:
        """The sampling options."""
        # They were checked when this was made.
        return SamplingParameters.model_construct(
            **{name: getattr(self, name) for name in SamplingParameters.model_fields}
        )


# The defaults of sampling: one rule for all verbs, the library and the daemon.
#
# A request's options take precedence over a preset's, those over the model's own file (its makers'
# temperature, top_k, top_p and min_p: runtime.sampling.parameters), and those over the defaults. In a
# conversation, which is `chat`, `run` and all that a daemon answers, that is a temperature of 0.8, no limit
# but the context, and another seed each time. For `generate` and the library it is what GenerationOptions
# declares: a temperature of 0.

CONVERSATION_TEMPERATURE = 0.8

SEED_BITS = 32
"""The range of a seed that is drawn: short enough for a person to type again."""


def usual_in_conversation() -> GenerationOptions:
    """Return the defaults in a conversation, each time with another seed."""
    return GenerationOptions(
        temperature=CONVERSATION_TEMPERATURE, seed=secrets.randbits(SEED_BITS), max_tokens=None
    )


def usual_words(temperature: float) -> dict[str, str]:
    """The rule for people, by the names of the options: `temperature` is usual where nobody says one."""
    of_file = {"temperature": temperature, "top_k": 0, "top_p": 1, "min_p": 0}
    return {name: f"what the model's file says, else {value:g}" for name, value in of_file.items()}


USUAL_WORDS = usual_words(GenerationOptions().temperature)
"""What `--help` says where an answer is no part of a conversation."""

USUAL_IN_CONVERSATION = usual_words(CONVERSATION_TEMPERATURE) | {"seed": "another each time"}
"""The same in a conversation."""
