"""Define the form of a suite's file, and read one."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from anespec.runtime.speculation.policy import MAX_DRAFT_LEN
from anespec.system.errors import RequestError, UsageError
from anespec.system.formatting import counted, listed, quoted, shown
from anespec.system.options import Options
from anespec.system.toml_file import read_toml
from anespec.validate.bench.options import BenchOptions, PromptClass, TextKind

FOLDER = Path(__file__).parent

Count = Annotated[int, Field(ge=1, le=1 << 20, strict=True)]
Several = Annotated[int, Field(ge=1, le=1000, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=40)]


WAY_OPTIONS = (
    "drafter", "lookup_max", "lookup_min", "lookup_choose", "mod_match", "mod_size", "datastore",
    "draft_memory_size", "translate", "translate_prefix",
    "draft_max", "draft_min_p",
)  # fmt: skip
"""The options that may differ from way to way; all others belong to the command."""


STANDARD = "standard"
"""The suite that runs where none is named."""

QUICK_OUTPUT_TOKENS = 48
"""The most tokens of an answer in the quick form of a suite."""


class View(StrEnum):
    """A table or plot that a suite ends in (see views.py)."""

    TEXTS = "texts"
    WAYS = "ways"
    COSTS = "costs"
    SPEED = "speed"
    PARITY = "parity"
    POSITIONS = "positions"
    DRAFTS = "drafts"
    TURNS = "turns"
    OCCUPANCY = "occupancy"
    WARM = "warm"
    FITS = "fits"
    LENGTHS = "lengths"
    STARTS = "starts"
    SCOREBOARD = "scoreboard"
    WAITS = "waits"
    VERDICT = "verdict"
    PUBLISHED = "published"


class Texts(Options):
    """Prompts of one kind: `prompts` different ones of each number of `tokens`."""

    kind: TextKind
    tokens: tuple[Count, ...] = Field(min_length=1)
    prompts: Several = 1


class Conversation(Options):
    """A conversation that edits a text: its first prompt has `tokens`, each turn asks for a change."""

    name: Name
    kind: TextKind = TextKind.EDITING
    tokens: Count
    turns: Annotated[int, Field(ge=1, le=100, strict=True)]


class Ways(Options):
    """Ways of drafting that differ only in the number of drafts a pass; each is a column of the experiment.

    `usual` adds each number that fits a block and those that fill wider passes, and `as_they_pay` a way that
    runs as many as pay.
    `options` are those of `bench run`, such as `drafter`. Passes are of `width` rows if it is given. With
    `perfect` the drafts are the known text. Ways with `draft_model` need a second model that drafts.
    """

    name: Name
    drafts: tuple[Annotated[int, Field(ge=0, le=MAX_DRAFT_LEN, strict=True)], ...] = ()
    usual: bool = False
    as_they_pay: bool = False
    width: Count | None = None
    perfect: bool = False
    draft_model: bool = False
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_clear(self) -> Self:
        if not (self.drafts or self.usual or self.as_they_pay):
            raise RequestError(
                f"the way {quoted(self.name)} needs drafts, as in [2, 4], or usual = true, or as_they_pay = "
                "true"
            )
        wrong = next((name for name in self.options if name not in WAY_OPTIONS), None)
        if wrong is not None:
            raise RequestError(
                f"the way {quoted(self.name)} sets {quoted(wrong)}; its options may be {listed(WAY_OPTIONS)}"
            )
        return self


class Baseline(Options):
    """The runs without drafts that all others are compared with; `width` as in Ways."""

    name: Name = "without drafts"
    width: Count | None = None


class Warm(Options):
    """The comparison of a cold and a warm memory: of this way, with this number of drafts."""

    way: Name
    drafts: int = Field(ge=1, le=MAX_DRAFT_LEN)


def _several(value: Any) -> Any:
    """Return a number alone as one of several.

    Raises:
        RequestError: the value is neither a number nor several.
    """
    if isinstance(value, int):
        return (value,)
    if not isinstance(value, list | tuple) or not value:
        raise RequestError(f"output_tokens is {shown(value)}; give a number, or several such as [48, 144]")
    return value


class Suite(Options):
    """An experiment: which prompts are continued in which ways, and what is shown of it.

    `about` says what it reproduces, and `published` what its source measured, with model, machine and
    conditions. `samples` are short texts of their own lengths. Each prompt is continued by up to each of
    `output_tokens`, `runs` times in each way. `seed` selects the prompts, and seeds the sampling. With
    `takes_options` the command's options replace what the suite says.
    """

    title: Name
    about: Annotated[str, Field(min_length=1, max_length=2000)]
    seed: Seed = 1
    temperature: float = Field(default=0.0, ge=0, le=10, strict=True)
    runs: Several = 3
    output_tokens: Annotated[tuple[Count, ...], BeforeValidator(_several)]
    samples: tuple[PromptClass, ...] = ()
    texts: tuple[Texts, ...] = ()
    conversations: tuple[Conversation, ...] = ()
    baseline: Baseline = Baseline()
    ways: tuple[Ways, ...] = Field(min_length=1)
    warm: Warm | None = None
    takes_options: bool = False
    published: tuple[Annotated[str, Field(min_length=1, max_length=2000)], ...] = ()
    views: tuple[View, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not self.samples and not self.texts and not self.conversations:
            raise RequestError("the suite has no prompts; add samples, [[texts]] or [[conversations]]")
        for name in ("samples", "output_tokens"):
            values = getattr(self, name)
            if len({*values}) < len(values):
                raise RequestError(f"{name} has a value twice; name each once")
        if self.conversations and len(self.output_tokens) > 1:
            raise RequestError("answers in a conversation have one length; give output_tokens a number")
        names = [self.baseline.name, *(way.name for way in self.ways)]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise RequestError(f"two ways are named {quoted(double)}; give each a name of its own")
        if self.warm is not None:
            drafts = {way.name: way.drafts for way in self.ways}.get(self.warm.way)
            if drafts is None or self.warm.drafts not in drafts:
                raise RequestError(
                    f"warm asks for {counted(self.warm.drafts, 'draft')} of the way {quoted(self.warm.way)}, "
                    "which [[ways]] has not; name one that it has"
                )
        return self

    @property
    def knows_texts(self) -> bool:
        """Return whether the texts must be known before they are measured."""
        return bool(self.conversations) or self.warm is not None or any(way.perfect for way in self.ways)

    @property
    def sampling_text(self) -> str:
        """Return the sampling in words."""
        return f"temperature {self.temperature:g}, seed {self.seed}" if self.temperature else "greedy"

    @property
    def prompts(self) -> Iterator[tuple[TextKind, int, int]]:
        """Yield kind, tokens and number of every made prompt; of a conversation, those of its first turn."""
        for texts in self.texts:
            for tokens in texts.tokens:
                yield from ((texts.kind, tokens, number) for number in range(1, texts.prompts + 1))
        yield from ((each.kind, each.tokens, 1) for each in self.conversations)

    def quick(self) -> Self:
        """Return the quick form: one run, the shortest prompts, the fewest and the most drafts."""
        kept = {self.warm.way: self.warm.drafts} if self.warm is not None else {}

        def ends(way: Ways) -> Ways:
            drafts = {*way.drafts[:1], *way.drafts[-1:], *([kept[way.name]] if way.name in kept else [])}
            return way.with_changes(drafts=tuple(sorted(drafts)))

        return self.with_changes(
            runs=1,
            output_tokens=(min(*self.output_tokens, QUICK_OUTPUT_TOKENS),),
            texts=tuple(each.with_changes(tokens=(min(each.tokens),), prompts=1) for each in self.texts),
            conversations=self.conversations[:1],
            ways=tuple(map(ends, self.ways)),
        )

    def given(self, options: BenchOptions) -> Self:
        """Return the suite with the options of the command that were given, if it takes them.

        Raises:
            RequestError: no pass can run so many drafts.
        """
        chosen = options.model_fields_set
        changes: dict[str, Any] = {"runs": options.runs} if "runs" in chosen else {}
        if self.takes_options:
            if options.drafts is not None and options.drafts[-1] > MAX_DRAFT_LEN:
                raise RequestError(
                    f"--drafts {options.drafts[-1]} is more than the {MAX_DRAFT_LEN} drafts that a pass of a "
                    "sequence runs at most; give fewer"
                )
            own = {name: getattr(options, name) for name in WAY_OPTIONS if name in chosen}
            ways: dict[str, Any] = {"options": own}
            if options.drafts is not None:
                ways |= {"drafts": options.drafts, "usual": False}
            changes |= {
                name: getattr(options, option) for name, option in REPLACED.items() if option in chosen
            }
            changes["ways"] = tuple(way.with_changes(**ways) for way in self.ways)
        return self.with_changes(**changes)


REPLACED = {
    "samples": "classes",
    "output_tokens": "lengths",
    "temperature": "temperature",
    "seed": "seed",
}
"""The fields of a suite that options replace, if it takes them."""


def suite_names() -> tuple[str, ...]:
    """Return the names of the suites of this package."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def suite_path(name: str) -> Path:
    """Return the file of a suite: one of this package by its name, or the file that the name leads to.

    Raises:
        RequestError: there is no such suite.
    """
    if name in suite_names():
        return FOLDER / f"{name}.toml"
    if not name.endswith(".toml"):
        raise RequestError(
            f"there is no suite {quoted(name)}; give {listed((*suite_names(), 'all'), 'or')}, or a file "
            "with a name that ends in .toml"
        )
    return Path(name)


def read_suite(name: str) -> Suite:
    """Read a suite, given by its name or by its file.

    Raises:
        RequestError: there is no such suite, or its file is not one.
        StorageError: the file cannot be read.
    """
    path = suite_path(name)
    try:
        return Suite(**read_toml(path))
    except UsageError as error:
        raise RequestError(str(error)) from None
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from None
