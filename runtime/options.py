"""Define the options of loading a model and of generating text.

They are declared once here, for the Python API, the command line and JSON lines.
"""

import os
import secrets
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from anespec.manifests.weight_choice import WeightChoice, read_choice
from anespec.runtime.backends import AUTO, ENTRIES
from anespec.runtime.sampling.parameters import SamplingParameters
from anespec.system.errors import RequestError
from anespec.system.formatting import listed, quoted
from anespec.system.options import Flag, Options, read_size

if TYPE_CHECKING:
    from anespec.runtime.backends.worker.sharing import WorkerLimits

DRAFTER_CHOICES = ("none", "auto", "mix", "lookup", "mod", "datastore", "recycle", "jacobi")
MODEL_DRAFTER = "model"
"""The drafter that is a second model alone."""

SECOND_MODEL_OPTIONS = ("draft_backend", "draft_max", "draft_min_p", "translate", "translate_prefix")
"""The options of a second model, beside the one that names it."""

FORMER_DRAFTERS = (
    ("suffix", "the draft source suffix was removed; use auto, which drafts better for every kind of text"),
)
GATES_VARIABLE = "ANESPEC_GATES"
MOD_MATCH = 24
MOD_ENTRIES = 4 << 20
LONGEST_MATCH = 64
"""The maximum of the options that set the length of a match, in tokens."""

MAX_THREADS = 4 * (os.cpu_count() or 1)
"""The maximum of `threads`. With many more threads than processors, the threads wait for one another, and a
pass takes minutes."""

LONGEST_PASS = 86400.0
"""The maximum of `worker_timeout`, in seconds: one day."""

MOST_CHOICES = 128

MOST_STOPS = 256
"""The maximum number of stop strings. The text is searched for each of them at every token."""

LONGEST_REFERENCE = 1 << 18
"""The maximum length of a reference, in characters. No pass runs while a reference is indexed; a hundred
thousand tokens or more take about a second."""


DEFAULT_MEMORY_BYTES = 32_000_000
"""The default size of a tenant's draft memory."""

NO_FOLDER = Path(os.devnull)
"""Stands for "none" as the folder of the draft memory: the memory is kept in RAM, and no file is written."""


def _read_folder(value: Any) -> Any:
    return NO_FOLDER if str(value) == "none" else value


def _require_drafter(name: str) -> str:
    if name in (*DRAFTER_CHOICES, MODEL_DRAFTER):
        return name
    unknown = f"drafter is {quoted(name)}; it must be {listed((*DRAFTER_CHOICES, MODEL_DRAFTER), 'or')}"
    raise RequestError(dict(FORMER_DRAFTERS).get(name, unknown))


def _read_limit(value: Any) -> Any:
    """Accept -1 for no limit, as llama.cpp's programs do."""
    return None if value in (-1, "-1") else value


def _as_tuple(value: Any) -> Any:
    """Return one text, or a list of texts, as a tuple."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _require_texts(stops: tuple[str, ...]) -> tuple[str, ...]:
    if "" in stops:
        raise RequestError("a stop string is empty; leave it out, or give at least one character")
    return stops


class BackendOptions(Options):
    """The backend that runs the shards, and its number of threads."""

    backend: Annotated[str, Flag(choices=(AUTO, *ENTRIES))] = Field(
        default="auto",
        description="The library that runs the model: "
        + "; ".join(f"{name}, {entry.described}" for name, entry in ENTRIES.items())
        + ". auto takes worker, else coreml, on a Mac with a Neural Engine, unless the artifact is for CPUs; "
        "then mlx on a Mac that has it; then openvino.",
    )
    threads: Annotated[int | None, Flag(default="all")] = Field(
        default=None, ge=1, le=MAX_THREADS, description="The number of CPU threads."
    )
    worker_budget: Annotated[int | None, BeforeValidator(read_size), Flag(metavar="BYTES", default="3GB")] = (
        Field(
            default=None,
            ge=1,
            description="Bytes of weights in one native worker, such as 2GB; a larger model uses several "
            "workers.",
        )
    )
    worker_timeout: Annotated[float | None, Flag(default="600")] = Field(
        default=None,
        gt=0,
        le=LONGEST_PASS,
        description="Seconds that a pass may take; then its native worker is killed and started again.",
    )
    worker_loading: Annotated[
        Literal["together", "in-turn"] | None,
        Flag(choices=("together", "in-turn"), default="together with 16 GB of memory or more"),
    ] = Field(
        default=None,
        description="Whether native workers load their shards together or one after another (in-turn).",
    )
    verify: bool = Field(
        default=False,
        description="Hash every file again, also files whose size and time have not changed.",
    )

    @property
    def workers(self) -> "WorkerLimits":
        """The limits of native workers."""
        from anespec.runtime.backends.worker.sharing import BUDGET, PASS_SECONDS, WorkerLimits

        return WorkerLimits(
            self.worker_budget or BUDGET, self.worker_timeout or PASS_SECONDS, loading=self.worker_loading
        )


class WhenGates(StrEnum):
    """When to run the gates of a model that has no verdicts for this machine.

    NOW: before the first request. LATER: in the background, or after the answer if `generate` or `run` give
    only one. NEVER: not at all.
    """

    NOW = "now"
    LATER = "later"
    NEVER = "never"


def usual_gates() -> WhenGates | None:
    """Return the value of the environment variable GATES_VARIABLE; None if it is not set or empty.

    Raises:
        RequestError: the variable has a value that is not in WhenGates.
    """
    value = os.environ.get(GATES_VARIABLE)
    if not value:
        return None
    try:
        return WhenGates(value)
    except ValueError:
        raise RequestError(
            f"{GATES_VARIABLE} is {quoted(value)}; it must be {listed(list(WhenGates), 'or')}"
        ) from None


class LoadOptions(BackendOptions):
    """The options of loading a model.

    `context`, `sequences` and `weights` set how a GGUF is converted; an artifact with other values is
    refused.
    """

    context: Annotated[int | None, Flag(default="as convert sets it")] = Field(
        default=None, ge=1, description="The context in tokens that a GGUF is converted with."
    )
    sequences: Annotated[int | None, Flag(default="1, to serve 4")] = Field(
        default=None, ge=1, description="The number of sequences of a GGUF that can run at a time."
    )
    weights: Annotated[
        WeightChoice | None,
        BeforeValidator(read_choice),
        Flag(metavar="FORMAT[,KIND=FORMAT…]", default="int8-channel"),
    ] = Field(default=None, description="How a GGUF's weights are stored, as `convert --weights` takes it.")
    gates: Annotated[WhenGates | None, Flag(default=f"later, or what {GATES_VARIABLE} says")] = Field(
        default=None,
        description="When to run the gates of a model that has no verdicts for this machine: now, before "
        "the first request; later, in the background, with drafts once they have passed (for a single "
        "answer in a terminal: after it); never.",
    )
    drafter: Annotated[
        str,
        AfterValidator(_require_drafter),
        Flag(choices=(*DRAFTER_CHOICES, MODEL_DRAFTER), former=FORMER_DRAFTERS),
    ] = Field(
        default="auto",
        description="The source of drafts. mix predicts from many kinds of context, in this text and in "
        "earlier requests, weighted by past accuracy; auto adds the candidates of recycle, jacobi and a "
        "datastore. lookup copies the tokens after the longest earlier match; mod is llama.cpp's ngram-mod; "
        "datastore copies from a corpus; recycle uses the model's own earlier predictions after the same "
        "tokens; jacobi continues the last pass's guesses in free rows (lookahead decoding), and stores "
        "their predictions; model is the model of --draft alone.",
    )
    draft: Annotated[Path | None, Flag(metavar="DIR|GGUF", default="no second model")] = Field(
        default=None,
        description="A second, smaller model that drafts beside the drafter, where its passes bring more "
        "than they cost: an artifact, a GGUF (a file, hf:… or a URL) or a cached model.",
    )
    draft_backend: Annotated[str | None, Flag(choices=(AUTO, *ENTRIES), default="that of --backend")] = Field(
        default=None, description="The library that runs the second model."
    )
    draft_max: int = Field(
        default=15,
        ge=1,
        le=15,
        description="The most tokens that the second model guesses for a pass (1 to 15).",
    )
    draft_min_p: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="The least probability that the second model must give a token that it guesses "
        "(llama.cpp's --draft-p-min); a guess ends before a less likely one.",
    )
    translate: Annotated[
        Literal["none", "naive", "context", "intersect"] | None,
        Flag(
            choices=("none", "naive", "context", "intersect"),
            default="none if both vocabularies are the same, else context",
        ),
    ] = Field(
        default=None,
        description="How the second model's guesses become this model's tokens: none passes ids; naive "
        "encodes the guess's text alone, context behind the text's last tokens; intersect drafts only "
        "tokens that both vocabularies have.",
    )
    translate_prefix: int = Field(
        default=5,
        ge=1,
        le=LONGEST_MATCH,
        description="The tokens of text behind which --translate context encodes a guess "
        f"(1 to {LONGEST_MATCH}).",
    )
    lookup_max: int = Field(
        default=16, ge=1, le=LONGEST_MATCH, description="The longest match that lookup searches, in tokens."
    )
    lookup_min: int = Field(
        default=1, ge=1, le=LONGEST_MATCH, description="The shortest match that lookup copies from."
    )
    lookup_choose: Annotated[Literal["recent", "leftmost"], Flag(choices=("recent", "leftmost"))] = Field(
        default="recent", description="Which of several matches lookup copies from."
    )
    mod_match: int = Field(
        default=MOD_MATCH,
        ge=1,
        le=LONGEST_MATCH,
        description="The number of tokens that mod hashes (llama.cpp's --spec-ngram-mod-n-match).",
    )
    mod_size: int = Field(
        default=MOD_ENTRIES,
        ge=1 << 10,
        le=1 << 28,
        description="The number of entries of mod's table, of 4 bytes each.",
    )
    datastore: Annotated[Path | None, Flag(metavar="FILE", default="none")] = Field(
        default=None, description="The corpus that drafts are copied from (anespec datastore build)."
    )
    draft_memory: Annotated[
        Path | None, BeforeValidator(_read_folder), Flag(metavar="DIR|none", default="anespec's cache folder")
    ] = Field(
        default=None,
        description="Folder of the draft memory, which holds what drafting learns from requests, including "
        "their texts, for each tenant (API key) separately; none keeps it in RAM only.",
    )
    draft_memory_size: Annotated[int, BeforeValidator(read_size), Flag(metavar="BYTES")] = Field(
        default=DEFAULT_MEMORY_BYTES,
        ge=1_000_000,
        le=1_000_000_000,
        description="Size of the draft memory for each tenant, as in 32MB.",
    )
    chat_template: Annotated[Path | None, Flag(metavar="NAME|FILE", default="the model's own")] = Field(
        default=None,
        description="The chat template that turns messages into a prompt: a file with a Jinja template, or "
        "one of chatml, gemma, llama2, llama3, mistral, phi3; plain, with lines of User: and Assistant:, is "
        "for models without chat turns.",
    )
    prompt_gate: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Draft only if at least this share of a prompt's 3-grams occur earlier in it.",
    )
    queue: Annotated[int | None, Flag(shown=False)] = Field(
        default=None, ge=1, description="The number of requests that may wait; further ones are refused."
    )

    @property
    def when_gates(self) -> WhenGates:
        """The option's value, else the environment's, else LATER.

        Raises:
            RequestError: the environment variable has an unknown value.
        """
        return self.gates or usual_gates() or WhenGates.LATER

    def require_draft_model(self) -> None:
        """Check that the options of a second model fit one another.

        Raises:
            RequestError: a second model is missing, or would not be used.
        """
        if self.drafter == MODEL_DRAFTER and self.draft is None:
            raise RequestError(
                "--drafter model needs a second model; name it with --draft DIR or --draft model.gguf"
            )
        if self.drafter == "none" and self.draft is not None:
            raise RequestError(
                "--drafter none turns all drafts off, so --draft has no effect; leave one of the two out, or "
                "give --drafter model"
            )
        fields = type(self).model_fields
        unused = [name for name in SECOND_MODEL_OPTIONS if getattr(self, name) != fields[name].default]
        if self.draft is None and unused:
            flags = listed([f"--{name.replace('_', '-')}" for name in unused])
            raise RequestError(
                f"{flags} {'has' if len(unused) == 1 else 'have'} no effect without a second model; name one "
                "with --draft DIR or --draft model.gguf"
            )

    allow_inexact: bool = Field(
        default=False, description="Speculate even where that is not proven to leave the text unchanged."
    )
    allow_special: bool = Field(
        default=False,
        description="Encode a special token that is spelled out in a prompt, a message or a tool as that "
        "token. Then the author of any text can forge roles. By default its spelling is plain text.",
    )


class GenerationOptions(SamplingParameters):
    """The options of continuing one prompt. The defaults are greedy.

    `max_tokens` of None, or -1, means up to the end of the context; with 0 the prompt is computed and nothing
    else. With `scores_prompt` the prompt's tokens get logprobs, too. Choice number i is sampled with
    `seed` + i.
    """

    max_tokens: Annotated[
        int | None, BeforeValidator(_read_limit), Flag(names=("-n", "--max-tokens"), metavar="N")
    ] = Field(
        default=128,
        ge=0,
        description="The most tokens of output; -1 goes on until the model ends or the context is full.",
    )
    stop: Annotated[
        tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_require_texts), Flag(multiple=True)
    ] = Field(
        default=(),
        max_length=MOST_STOPS,
        description="End the output before this text; may be given several times.",
    )
    ignore_eos: bool = Field(default=False, description="Continue after the model's end tokens.")
    speculate: Annotated[bool, Flag(shown=False)] = Field(
        default=True, description="Draft tokens, where that provably changes no token of the output."
    )
    reference: Annotated[str, Flag(shown=False)] = Field(
        default="",
        max_length=LONGEST_REFERENCE,
        description="A text that the output may repeat: drafts are also copied from it.",
    )
    show_special: Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Flag(shown=False)] = Field(
        default=(),
        max_length=MOST_STOPS,
        description="Special tokens that are written out in the text; others are left out of it.",
    )
    scores_prompt: Annotated[bool, Flag(shown=False)] = Field(
        default=False, description="Report the logprobs of the prompt's tokens, too."
    )
    output_seconds: Annotated[float | None, Flag(shown=False)] = Field(
        default=None, gt=0, description="End the output so many seconds after its first token."
    )
    choices: int = Field(default=1, ge=1, le=MOST_CHOICES, description="The number of continuations.")

    answers_to: Annotated[str | None, Flag(shown=False)] = Field(
        default=None,
        description="The end of a conversation's prompt. The stop strings are then searched for in the "
        "answer alone, not in the reasoning before it, whose tags must be shown.",
    )
    ends: Annotated[tuple[str, ...], Flag(shown=False)] = Field(
        default=(), description="Texts that end the output anywhere, also in the reasoning."
    )

    def answering(self, prompt: str, ends: tuple[str, ...]) -> Self:
        """Return these options for a conversation: its prompt ends with `prompt`, its turns with `ends`."""
        return self.with_changes(answers_to=prompt, ends=ends)

    def ending_at(self, ends: tuple[str, ...]) -> Self:
        """Return these options with further stop strings."""
        return self.with_changes(stop=(*self.stop, *ends)) if ends else self

    @property
    def sampling(self) -> SamplingParameters:
        """The sampling options."""
        # The values were validated when these options were made.
        return SamplingParameters.model_construct(
            **{name: getattr(self, name) for name in SamplingParameters.model_fields}
        )


# The defaults of sampling follow one rule for all verbs, the library and the daemon.
#
# A request's own options come first, then those of a preset, then those in the model's file (temperature,
# top_k, top_p and min_p, as its makers recommend them: runtime.sampling.parameters), then the defaults.
# `chat`, `run` and the daemon hold conversations: their defaults are a temperature of 0.8, no limit but the
# context, and another seed each time. `generate` and the library use the defaults of GenerationOptions, with
# a temperature of 0.

CONVERSATION_TEMPERATURE = 0.8

SEED_BITS = 32
"""The bits of a random seed: few enough that a person can type the seed again."""


def usual_in_conversation() -> GenerationOptions:
    """Return the defaults of a conversation, with a new random seed."""
    return GenerationOptions(
        temperature=CONVERSATION_TEMPERATURE, seed=secrets.randbits(SEED_BITS), max_tokens=None
    )


def usual_words(temperature: float) -> dict[str, str]:
    """Return what `--help` shows as the defaults of options; `temperature` is the default without a file."""
    of_file = {"temperature": temperature, "top_k": 0, "top_p": 1, "min_p": 0}
    return {name: f"what the model's file says, else {value:g}" for name, value in of_file.items()}


DEFAULT_TEXTS = usual_words(GenerationOptions().temperature)
"""The defaults that `--help` shows where an answer is not part of a conversation."""

CONVERSATION_DEFAULT_TEXTS = usual_words(CONVERSATION_TEMPERATURE) | {"seed": "another each time"}
"""The defaults that `--help` shows for a conversation."""
