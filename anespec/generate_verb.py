"""`anespec generate`: text from an artifact."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from anespec.backend_options import backend_option, threads_option
from anespec.console import json_option, notes, out, print_json
from anespec.manifests.errors import RequestError, StorageError
from anespec.session import DRAFTERS, Session, make_drafter, open_session

if TYPE_CHECKING:
    from anespec.runtime.completion import Completion, Summary
    from anespec.runtime.sampling import SamplingParameters
    from anespec.runtime.text.tokenizer import Tokenizer

DEFAULT_TOKENS = 128


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("-p", "--prompt", help="The text to continue; - reads standard input.")
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path),
    help='JSONL of {"prompt": TEXT} or {"prompt_ids": [ID, …]}; prints one JSON object a line.',
)
@click.option(
    "--chat", is_flag=True, help="Take the prompt as a user's message in the model's chat template."
)
@backend_option
@threads_option
@click.option(
    "-n",
    "--max-tokens",
    type=click.IntRange(1),
    default=DEFAULT_TOKENS,
    show_default=True,
    help="Output length.",
)
@click.option(
    "--drafter", type=click.Choice(DRAFTERS), default="lookup", show_default=True, help="Who guesses."
)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, default=0, help="Sample from the K likeliest tokens only.  [default: off]")
@click.option("--top-p", type=float, default=1.0, help="Nucleus sampling.  [default: off]")
@click.option(
    "--min-p", type=float, default=0.0, help="Drop tokens below this share of the likeliest.  [default: off]"
)
@click.option(
    "--repeat-penalty", type=float, default=1.0, help="Penalise tokens seen before.  [default: off]"
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same text.")
@click.option("--stop", multiple=True, help="End before this text; may be given several times.")
@click.option("--ignore-eos", is_flag=True, help="Go on past the model's end tokens.")
@click.option("--show-drafts", is_flag=True, help="Show drafted tokens in another colour.")
@click.option("--allow-inexact", is_flag=True, help="Speculate even where it may change the text.")
@json_option
def generate(artifact: Path, **chosen: Any) -> None:
    """Continue a prompt with ARTIFACT's model.

    Speculation never changes a token: it is only used where the exactness gate has proven so for this
    artifact, backend and machine. Where it was never measured here, a quick form is run first.

    \b
    Example:
      anespec generate model.anespec -p "Once upon a time" -n 200 --show-drafts
    """
    if (chosen["prompt"] is None) == (chosen["prompt_file"] is None):
        raise click.UsageError("give one prompt with -p, or many with --prompt-file")
    settings = _Settings(chosen)
    session = open_session(
        artifact, settings.backend, settings.threads, settings.allow_inexact, settings.quiet
    )
    try:
        if settings.prompt_file is not None:
            for prompt in read_prompts(settings.prompt_file):
                print_json(_facts(_run(session, prompt, settings).summary, session.load_seconds))
            return
        text = read_standard_input() if settings.prompt == "-" else settings.prompt
        completion = _run(session, Prompt(text=text), settings)
        if settings.as_json:
            print_json(_facts(completion.summary, session.load_seconds))
        else:
            _stream(completion, settings.show_drafts)
            _show(completion.summary, session)
    finally:
        session.verifier.close()


class _Settings:
    """The verb's options, typed."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        self.prompt: str = chosen["prompt"] or ""
        self.prompt_file: Path | None = chosen["prompt_file"]
        self.chat: bool = chosen["chat"]
        self.backend: str = chosen["backend"]
        self.threads: int | None = chosen["threads"]
        self.max_tokens: int = chosen["max_tokens"]
        self.drafter: str = chosen["drafter"]
        self.stops: tuple[str, ...] = chosen["stop"]
        self.ignore_eos: bool = chosen["ignore_eos"]
        self.show_drafts: bool = chosen["show_drafts"]
        self.allow_inexact: bool = chosen["allow_inexact"]
        self.as_json: bool = chosen["as_json"]
        self.sampling = _sampling(chosen)

    @property
    def quiet(self) -> bool:
        """Whether progress must not be shown."""
        return self.as_json or self.prompt_file is not None


def _sampling(chosen: dict[str, Any]) -> "SamplingParameters":
    from anespec.runtime.sampling import SamplingParameters

    return SamplingParameters(
        temperature=chosen["temperature"],
        top_k=chosen["top_k"],
        top_p=chosen["top_p"],
        min_p=chosen["min_p"],
        repetition_penalty=chosen["repeat_penalty"],
        seed=chosen["seed"],
    )


@dataclass(frozen=True)
class Prompt:
    """A prompt as text or as token ids."""

    text: str = ""
    ids: tuple[int, ...] | None = None


def read_standard_input() -> str:
    """All of standard input; RequestError where it is closed or is not UTF-8 text."""
    if sys.stdin is None:
        raise RequestError("standard input is closed, so -p - has nothing to read")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise RequestError("standard input is not UTF-8 text") from None


def read_prompts(path: Path) -> Iterator[Prompt]:
    """Prompts of a JSONL file, every line checked before the first is returned.

    Raises:
        StorageError: the file cannot be read.
        RequestError: it is not UTF-8 text, or a line is not a prompt.
    """
    try:
        # Not `splitlines`: JSON texts may hold characters that it takes for line ends.
        lines = path.read_text("utf-8-sig").split("\n")
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise RequestError(f"{path}: is not UTF-8 text") from None
    return iter([_read_prompt(path, i, line) for i, line in enumerate(lines, 1) if line.strip()])


def _read_prompt(path: Path, number: int, line: str) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError(f"{path}: line {number} is not JSON") from None
    match value:
        case {"prompt": str(text), **rest} if "prompt_ids" not in rest:
            return Prompt(text=text)
        case {"prompt_ids": list(ids), **rest} if "prompt" not in rest and all(type(i) is int for i in ids):
            return Prompt(ids=tuple(ids))
    raise RequestError(
        f'{path}: line {number} must have either "prompt", a text, or "prompt_ids", a list of ids'
    )


def _run(session: Session, prompt: Prompt, settings: _Settings) -> "Completion":
    from anespec.runtime.completion import Completion
    from anespec.runtime.requests import Request

    tokenizer, context = session.tokenizer, session.verifier.shape.context
    request = Request(
        prompt=prompt.ids
        if prompt.ids is not None
        else _encode(tokenizer, prompt.text, settings.chat, context),
        max_tokens=settings.max_tokens,
        sampling=settings.sampling,
        drafter=make_drafter(settings.drafter),
        end_ids=frozenset() if settings.ignore_eos else tokenizer.end_ids,
    )
    return Completion(session.engine, tokenizer, request, settings.stops)


def _encode(tokenizer: "Tokenizer", text: str, chat: bool, context: int) -> tuple[int, ...]:
    from anespec.runtime.text.fitting import require_fitting

    require_fitting(text, tokenizer, context)
    if not chat:
        return tuple(tokenizer.encode(text))
    from anespec.runtime.text.chat import render_chat

    if tokenizer.chat_template is None:
        raise RequestError("this model has no chat template; leave --chat out")
    rendered = render_chat(
        tokenizer.chat_template,
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        bos=_text_of(tokenizer, tokenizer.bos_id),
        eos=_text_of(tokenizer, tokenizer.eos_id),
    )
    require_fitting(rendered, tokenizer, context)
    return tuple(tokenizer.encode(rendered, add_special=False, parse_special=True))


def _text_of(tokenizer: "Tokenizer", token: int | None) -> str:
    return "" if token is None else tokenizer.decode([token], skip_special=False)


def _stream(completion: "Completion", show_drafts: bool) -> None:
    console = out()
    for chunk in completion:
        style = "green" if show_drafts and chunk.drafted else ""
        console.print(Text(chunk.text, style=style), end="")
        console.file.flush()
    console.print()


def _facts(summary: "Summary", load_seconds: float) -> dict[str, Any]:
    statistics = summary.statistics
    return {
        "prompt_ids": list(summary.prompt_ids),
        "output_ids": list(summary.output_ids),
        "text": summary.text,
        "passes": statistics.passes,
        "tokens_per_pass": round(statistics.tokens_per_pass, 4),
        "accepted_by_position": list(statistics.accepted_by_position),
        "proposed_by_position": list(statistics.proposed_by_position),
        "finish_reason": summary.finish.value,
        "seconds": {
            "load": round(load_seconds, 4),
            "prefill": round(statistics.prefill_seconds, 4),
            "decode": round(statistics.decode_seconds, 4),
        },
    }


def _show(summary: "Summary", session: Session) -> None:
    statistics = summary.statistics
    tokens = len(summary.output_ids)
    rate = statistics.drawn_in_decode / statistics.decode_seconds if statistics.decode_seconds else 0.0
    prefill = statistics.prompt_tokens - statistics.reused_tokens
    prefill_rate = prefill / statistics.prefill_seconds if statistics.prefill_seconds else 0.0
    pairs = zip(statistics.accepted_by_position, statistics.proposed_by_position, strict=True)
    acceptance = " ".join(f"{accepted}/{proposed}" for accepted, proposed in pairs) or "none proposed"
    notes().print(
        f"{tokens} tokens in {statistics.passes} passes ({summary.finish}), "
        f"{statistics.tokens_per_pass:.2f} tokens per decode pass\n"
        f"drafts accepted by position: {acceptance}\n"
        f"{rate:.1f} tokens/s; prefill {prefill} tokens at {prefill_rate:.1f} tokens/s; "
        f"load {session.load_seconds:.1f} s on {session.backend}",
        style="dim",
    )
