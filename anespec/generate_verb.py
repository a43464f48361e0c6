"""`anespec generate`: text from an artifact."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from anespec.backend_options import backend_option, threads_option
from anespec.console import json_option, notes, out, print_json
from anespec.leaving import keep
from anespec.manifests.errors import Interrupted, RequestError
from anespec.manifests.wording import counted
from anespec.prompts import Prompt, PromptFile, read_standard_input
from anespec.sampling_options import read_sampling, sampling_options
from anespec.session import DRAFTERS, Session, make_drafter, open_session

if TYPE_CHECKING:
    from anespec.runtime.completion import Completion, Summary
    from anespec.runtime.requests import Request
    from anespec.runtime.text.tokenizer import Tokenizer

DEFAULT_TOKENS = 128


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("-p", "--prompt", help="The text to continue; - reads standard input.")
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path),
    help='JSONL of {"prompt": TEXT}, {"prompt_ids": [ID, …]} or {"messages": [{"role": …, "content": …}, '
    "…]}, each with max_tokens, stop, temperature and other options of its own if it likes; prints one JSON "
    "object a line.",
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
@sampling_options
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
    if "" in chosen["stop"]:
        raise click.BadParameter("an empty text stops nothing.", param_hint="'--stop'")
    settings = _Settings(chosen)
    try:
        if settings.prompt_file is None:
            _generate_one(artifact, settings)
        else:
            _generate_many(artifact, settings.prompt_file, settings)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; what was printed is whole as far as it goes") from None


def _generate_one(artifact: Path, settings: "_Settings") -> None:
    text = read_standard_input() if settings.prompt == "-" else settings.prompt
    prompt = Prompt(prompt=text)
    checked: list[Request] = []

    def check(session: Session) -> None:
        checked.append(_checked(session, prompt, settings))

    with _opened(artifact, settings, check) as session:
        completion = _completion(session, prompt, checked[0], settings)
        _hint_at_template(session, settings)
        if settings.as_json:
            print_json(_facts(completion.summary, session.load_seconds))
        else:
            _stream(completion, settings.show_drafts)
            _show(completion.summary, session)


def _generate_many(artifact: Path, path: Path, settings: "_Settings") -> None:
    """One line after another, all of them checked before the first is run."""
    with PromptFile(path) as prompts:

        def check(session: Session) -> None:
            for place, prompt in prompts:
                try:
                    _checked(session, prompt, settings)
                except RequestError as error:
                    raise RequestError(f"{place}: {error}") from None

        plain = Counter(prompt.prompt is not None for _, prompt in prompts)
        if not plain:
            raise RequestError(f'{path}: holds no prompt; each line is one, as in {{"prompt": "Hello"}}')
        with _opened(artifact, settings, check) as session:
            if plain[True]:
                _hint_at_template(session, settings)
            for _, prompt in prompts:
                completion = _completion(session, prompt, _request(session, prompt, settings), settings)
                print_json(_facts(completion.summary, session.load_seconds))


@contextlib.contextmanager
def _opened(artifact: Path, settings: "_Settings", check: Callable[[Session], None]) -> Iterator[Session]:
    session = open_session(
        artifact, settings.backend, settings.threads, settings.allow_inexact, settings.quiet, check
    )
    try:
        yield session
    finally:
        keep(session)


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
        self.sampling = read_sampling(chosen)

    @property
    def quiet(self) -> bool:
        """Whether progress must not be shown."""
        return self.as_json or self.prompt_file is not None


def _request(session: Session, prompt: Prompt, settings: _Settings) -> "Request":
    """What the prompt and the options ask for.

    Raises:
        RequestError: the prompt does not fit, or the model has no template for it.
    """
    from anespec.runtime.requests import Request

    return Request(
        prompt=_ids(session, prompt, settings.chat),
        max_tokens=prompt.max_tokens or settings.max_tokens,
        sampling=settings.sampling.with_changes(**prompt.sampling),
        drafter=make_drafter(settings.drafter),
        end_ids=frozenset() if settings.ignore_eos else session.tokenizer.end_ids,
    )


def _checked(session: Session, prompt: Prompt, settings: _Settings) -> "Request":
    """The request; raises the RequestError that running it would raise."""
    request = _request(session, prompt, settings)
    session.engine.cancel(session.engine.submit(request))
    return request


def _completion(session: Session, prompt: Prompt, request: "Request", settings: _Settings) -> "Completion":
    """The prompt's request on the session's engine, not yet begun."""
    from anespec.runtime.completion import Completion

    stops = settings.stops if prompt.stops is None else prompt.stops
    return Completion(session.engine, session.tokenizer, request, stops)


def _ids(session: Session, prompt: Prompt, chat: bool) -> tuple[int, ...]:
    from anespec.runtime.text.fitting import require_fitting

    if prompt.prompt_ids is not None:
        return prompt.prompt_ids
    tokenizer, context = session.tokenizer, session.verifier.shape.context
    text = prompt.prompt or ""
    require_fitting(text, tokenizer, context)
    conversation = prompt.conversation
    if conversation is None and chat:
        conversation = [{"role": "user", "content": text}]
    if conversation is None:
        return tuple(tokenizer.encode(text))
    return _encode(tokenizer, conversation, context)


def _encode(
    tokenizer: "Tokenizer", conversation: Sequence[Mapping[str, object]], context: int
) -> tuple[int, ...]:
    from anespec.runtime.text.chat import render_chat
    from anespec.runtime.text.fitting import require_fitting

    if tokenizer.chat_template is None:
        raise RequestError("this model has no chat template; give a plain prompt, without --chat or messages")
    rendered = render_chat(
        tokenizer.chat_template,
        conversation,
        add_generation_prompt=True,
        bos=_text_of(tokenizer, tokenizer.bos_id),
        eos=_text_of(tokenizer, tokenizer.eos_id),
    )
    require_fitting(rendered, tokenizer, context)
    return tuple(tokenizer.encode(rendered, add_special=False, parse_special=True))


def _hint_at_template(session: Session, settings: _Settings) -> None:
    if session.tokenizer.chat_template is not None and not settings.chat:
        notes().print(
            "note: this model has a chat template, which --chat puts the prompt into; without it the prompt "
            "is continued as it is",
            style="dim",
        )


def _text_of(tokenizer: "Tokenizer", token: int | None) -> str:
    return "" if token is None else tokenizer.decode([token], skip_special=False)


def _stream(completion: "Completion", show_drafts: bool) -> None:
    console = out()
    try:
        for chunk in completion:
            style = "green" if show_drafts and chunk.drafted else ""
            console.print(Text(chunk.text, style=style), end="")
            console.file.flush()
    except KeyboardInterrupt:
        console.print()
        raise
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
    from anespec.runtime.requests import FinishReason

    statistics = summary.statistics
    tokens = len(summary.output_ids)
    rate = statistics.drawn_in_decode / statistics.decode_seconds if statistics.decode_seconds else 0.0
    prefill = statistics.prompt_tokens - statistics.reused_tokens
    prefill_rate = prefill / statistics.prefill_seconds if statistics.prefill_seconds else 0.0
    pairs = zip(statistics.accepted_by_position, statistics.proposed_by_position, strict=True)
    acceptance = " ".join(f"{accepted}/{proposed}" for accepted, proposed in pairs) or "none proposed"
    ending = (
        f"the context of {session.verifier.shape.context} is full"
        if summary.finish is FinishReason.CONTEXT
        else summary.finish
    )
    notes().print(
        f"{counted(tokens, 'token')} in {counted(statistics.passes, 'pass', 'passes')} ({ending}), "
        f"{statistics.tokens_per_pass:.2f} tokens per decode pass\n"
        f"drafts accepted by position: {acceptance}\n"
        f"{rate:.1f} tokens/s; prefill {counted(prefill, 'token')} at {prefill_rate:.1f} tokens/s; "
        f"load {session.load_seconds:.1f} s on {session.backend}",
        style="dim",
    )
