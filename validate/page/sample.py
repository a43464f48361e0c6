"""Lay out texts of the artifact beside the reference's, with their speed and memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from anespec.manifests.schema import Manifest
from anespec.system.formatting import bytes_text, counted
from anespec.validate.sample.figures import Generation, OtherChoice, Passage, SampleRun

MAX_PIECES = 512


@dataclass(frozen=True)
class Figure:
    """A named number with its unit and a note."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class TextPart:
    """Some text: `same`, `other` where artifact and reference differ, or `parting` at their first difference.

    `title` says which token the other side would have chosen.
    """

    text: str
    look: str = "same"
    title: str = ""


@dataclass(frozen=True)
class PassageView:
    """A prompt and both continuations; `reference` is empty if it is the same text or was not generated."""

    prompt: str
    artifact: tuple[TextPart, ...]
    reference: tuple[TextPart, ...]
    words: str
    cost: tuple[str, ...]


@dataclass(frozen=True)
class SampleView:
    """One sample run."""

    run: SampleRun
    figures: tuple[Figure, ...]
    passages: tuple[PassageView, ...]


def view_sample(run: SampleRun, manifest: Manifest) -> SampleView:
    """Return the figures over all passages, and each passage."""
    plain = _joined([passage.plain for passage in run.passages])
    drafts = [passage.drafted for passage in run.passages if passage.drafted is not None]
    figures = [
        Figure(
            f"One pass at T = {manifest.block}",
            f"{_milliseconds(plain.pass_seconds)} ms",
            f"median; {_rate(1 / plain.pass_seconds if plain.pass_seconds else 0.0)} passes a second",
        ),
        Figure("Without drafts", f"{_rate(plain.tokens_per_second)} tokens/s", "1 token a pass"),
    ]
    if drafts:
        drafted = _joined(drafts)
        figures.append(
            Figure(
                "With drafts by lookup",
                f"{_rate(drafted.tokens_per_second)} tokens/s",
                f"{drafted.tokens_per_pass:.2f} tokens a pass; {drafted.accepted} of {drafted.proposed} "
                "drafts right",
            )
        )
    figures += [
        Figure("Memory", bytes_text(run.peak_bytes), "peak resident, in a process that only generates"),
        Figure("KV state", bytes_text(manifest.state_bytes), _state_words(manifest)),
    ]
    return SampleView(run, tuple(figures), tuple(_passage(passage) for passage in run.passages))


def _state_words(manifest: Manifest) -> str:
    states = sum(len(shard.states) for shard in manifest.layer_shards)
    sequences = counted(manifest.sequences, "sequence")
    return f"{counted(states, 'state')} for {sequences} of {manifest.context} tokens"


def _passage(passage: Passage) -> PassageView:
    pieces = passage.pieces[:MAX_PIECES]
    reading = passage.reference
    others = {other.index: other for other in reading.others} if reading is not None else {}
    first = min(others, default=len(pieces))
    artifact = tuple(_part(piece, index, others.get(index), first) for index, piece in enumerate(pieces))
    reference: tuple[TextPart, ...] = ()
    if reading is not None and passage.parting is not None:
        own = reading.own[:MAX_PIECES] if reading.own is not None else None
        rest = own[first:] if own is not None else (passage.parting.text, " …")
        looks = ["parting", *["other"] * len(rest)]
        reference = (
            TextPart("".join(pieces[:first])),
            *(TextPart(text, look) for text, look in zip(rest, looks, strict=False)),
        )
    return PassageView(
        passage.prompt, _merged(artifact), _merged(reference), _agreement(passage), _cost(passage)
    )


def _part(piece: str, index: int, other: OtherChoice | None, first: int) -> TextPart:
    if other is None:
        return TextPart(piece)
    title = (
        f"token {index + 1}: the reference gives {_percent(other.probability)} to {_token(other.text)}, "
        f"{_percent(other.chosen_probability)} to this"
    )
    return TextPart(piece, "parting" if index == first else "other", title)


def _merged(parts: Sequence[TextPart]) -> tuple[TextPart, ...]:
    """Join neighbouring parts with the same look."""
    merged: list[TextPart] = []
    for part in parts:
        if merged and not part.title and not merged[-1].title and merged[-1].look == part.look:
            merged[-1] = TextPart(merged[-1].text + part.text, part.look)
        else:
            merged.append(part)
    return tuple(merged)


def _agreement(passage: Passage) -> str:
    reading, parting, tokens = passage.reference, passage.parting, len(passage.pieces)
    if reading is None:
        return "The GGUF was not available, so the reference did not read this."
    if parting is None:
        return f"The fp32 reference chooses the same text: all {counted(tokens, 'token')} are its own choice."
    more = len(reading.others) - 1
    later = f" Given this text, it would choose otherwise at {counted(more, 'later token')}." if more else ""
    left = "" if reading.own is not None else " The reference generates no text from a model of this size."
    return (
        f"They differ from token {parting.index + 1} of {tokens} on: the fp32 reference gives "
        f"{_percent(parting.probability)} to {_token(parting.text)} and "
        f"{_percent(parting.chosen_probability)} to {_token(passage.pieces[parting.index])}, a margin of "
        f"{parting.margin:.2g} nats.{later}{left}"
    )


def _cost(passage: Passage) -> tuple[str, ...]:
    lines = [f"without drafts: {_cost_words(passage.plain)}"]
    if passage.drafted is not None:
        lines.append(f"with drafts by lookup: {_cost_words(passage.drafted)}")
    return tuple(lines)


def _cost_words(cost: Generation) -> str:
    words = f"{counted(cost.tokens, 'token')} in {counted(cost.passes, 'pass', 'passes')}"
    drafts = f", {cost.accepted} of {cost.proposed} drafts right" if cost.proposed else ""
    return f"{words} ({cost.tokens_per_pass:.2f} a pass{drafts}), {_rate(cost.tokens_per_second)} tokens/s"


def _joined(costs: Sequence[Generation]) -> Generation:
    """Return the sums over all passages, with the median of their median passes."""
    return Generation(
        prompt_seconds=sum(cost.prompt_seconds for cost in costs),
        passes=sum(cost.passes for cost in costs),
        tokens=sum(cost.tokens for cost in costs),
        seconds=sum(cost.seconds for cost in costs),
        pass_seconds=median(cost.pass_seconds for cost in costs),
        proposed=sum(cost.proposed for cost in costs),
        accepted=sum(cost.accepted for cost in costs),
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}" if seconds < 1 else f"{1000 * seconds:.0f}"


def _rate(per_second: float) -> str:
    return f"{per_second:.0f}" if per_second >= 100 else f"{per_second:.1f}"


def _token(text: str) -> str:
    """Return a token in quotes, with signs for line ends, tabs and tokens of blanks alone."""
    text = text.replace("\n", "⏎").replace("\t", "⇥")
    return f"“{text if text.strip() else text.replace(' ', '␣')}”"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
