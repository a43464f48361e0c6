"""Define how a GGUF is converted for the cache: the request, the finished model, and whether they match."""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from anespec import __version__
from anespec.gguf.parts import stem_of
from anespec.manifests.schema import (
    BASE_ALIGNMENT,
    MOST_SLOTS,
    SCHEMA_VERSION,
    Bytes,
    Count,
    Index,
    Manifest,
    Name,
    Record,
    Target,
)
from anespec.manifests.usual_target import usual_target
from anespec.manifests.weight_choice import WeightChoice, kind_of
from anespec.system.errors import Interrupted, UsageError
from anespec.system.formatting import bytes_text, counted
from anespec.system.machine import machine_memory

if TYPE_CHECKING:
    from anespec.convert.options import ConvertOptions
    from anespec.convert.planning.plan import ConversionPlan


@contextlib.contextmanager
def open_plan(gguf: Path, options: "ConvertOptions") -> "Iterator[ConversionPlan]":
    """Open a GGUF and plan its conversion; the file is open inside the block.

    Raises:
        MissingPackageError: coremltools is not installed.
        GGUFError: the file is malformed.
        UnsupportedModelError: this version does not convert such a model or tokenizer.
        RequestError: the options do not fit the model.
        StorageError: the file cannot be read.
    """
    from anespec.convert.planning.plan import ConversionPlan
    from anespec.convert.source.model import SourceModel
    from anespec.gguf.container import GGUFFile
    from anespec.runtime.text.tokenizer import Tokenizer
    from anespec.system.packages import require_package

    # Building shards needs coremltools, so say at once that it is missing.
    require_package("coremltools", "a conversion")
    with GGUFFile(gguf) as file:
        plan = ConversionPlan(SourceModel(file), options)
        Tokenizer.from_gguf(file)
        yield plan


def conversion_notes(plan: "ConversionPlan", gguf: Path, output: Path) -> Iterator[str]:
    """Yield notes to write before a conversion: on a context that is too long, on blocks that are left out,
    on the disk it takes, and on a file that is larger than the memory.

    A conversion that goes on, or that was done before, has told of blocks and disk.
    """
    if plan.beyond_training:
        yield beyond_training(plan.context, plan.model.sizes.trained_context)
    if not output.exists():
        if left_out := plan.model.facts.left_out:
            yield f"{counted(len(left_out), 'block')} of multi-token prediction (MTP) will be left out"
        yield (
            f"{gguf.name} takes {bytes_text(plan.model.file.nbytes)} of disk, and its artifact will take "
            f"about {bytes_text(plan.estimated_bytes())} more"
        )
    if plan.model.file.nbytes > machine_memory():
        yield (
            f"{gguf.name} has {bytes_text(plan.model.file.nbytes)}, more than this machine's memory "
            f"({bytes_text(machine_memory())}); it is mapped, not read: a conversion holds the weights of "
            "one shard at a time"
        )


def beyond_training(context: int, trained: int) -> str:
    """Return the warning about a context that is longer than the trained one."""
    return (
        f"a context of {context} is longer than the {trained} tokens the model was trained for; texts longer "
        "than that may get worse answers"
    )


def stopped(interruption: KeyboardInterrupt) -> Interrupted:
    """Return the error for an interrupted conversion. Its text is that of `interruption`, or a default."""
    return Interrupted(str(interruption) or "interrupted; run the same command again to continue")


def default_output(gguf: Path) -> Path:
    """Return the default path of a GGUF's artifact: NAME.anespec in the current folder."""
    return Path(f"{stem_of(gguf.name)}.anespec")


USUAL_SEQUENCES = 4
"""The default number of sequences: how many requests of a daemon share a pass. Verbs that need fewer open the
artifact for fewer."""

USUAL_WEIGHTS = WeightChoice()

KEY_DIGITS = 6
"""Characters of the key that are appended to a name if nothing else distinguishes two models."""


class Entry(Record):
    """The properties of a finished model in the cache.

    `weight_choice` is the requested choice of formats, `weights` the formats that resulted. `usual_context`
    is True if the context is the default one.
    """

    name: Name
    source_sha256: str
    source_bytes: Bytes
    quantisation: str
    weights: tuple[str, ...]
    bytes: Bytes
    target: Target
    context: Count
    version: str
    schema_version: Index = 0
    sequences: Count = 1
    weight_choice: str = str(USUAL_WEIGHTS)
    usual_context: bool = False


@dataclass(frozen=True)
class Build:
    """The properties that a caller requests of a converted GGUF; None means the default.

    `context` is in tokens, a multiple of BASE_ALIGNMENT. `sequences` is the minimum. With `longer` so is
    `context` on a processor, where a pass pays for the slots in use alone.
    """

    target: Target
    context: int | None = None
    sequences: int | None = None
    weights: WeightChoice = USUAL_WEIGHTS
    longer: bool = False

    @classmethod
    def here(
        cls,
        context: int | None = None,
        sequences: int | None = None,
        weights: WeightChoice | None = None,
        *,
        longer: bool = False,
    ) -> Self:
        """Return the build for this machine, with the context rounded up as `convert` does."""
        return cls(
            usual_target(),
            None if context is None else -(-context // BASE_ALIGNMENT) * BASE_ALIGNMENT,
            sequences,
            weights or USUAL_WEIGHTS,
            longer,
        )

    @property
    def built_sequences(self) -> int:
        """Return the number of sequences to convert for.

        On a processor a pass reads only the slots in use, so more sequences cost nothing and the number is
        enough for every verb. Elsewhere a pass reads all slots, so a requested number is used unchanged.
        """
        if self.sequences is not None and self.target is not Target.CPU:
            return self.sequences
        most = MOST_SLOTS // (self.context or 1)
        return max(self.sequences or 1, min(USUAL_SEQUENCES, most))

    def key(self, sha256: str) -> str:
        """Return the name in the cache for this build of the GGUF with this hash."""
        facts = (
            sha256, self.target.value, self.context, self.built_sequences, str(self.weights), __version__,
            SCHEMA_VERSION,
        )  # fmt: skip
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def is_served_by(self, entry: Entry, sha256: str) -> bool:
        """Return whether a finished model satisfies this request for the GGUF with this hash.

        The model may have more sequences.
        """
        return (
            self._takes(entry)
            and entry.source_sha256 == sha256
            and (entry.version, entry.schema_version) == (__version__, SCHEMA_VERSION)
            and (entry.target, entry.weight_choice) == (self.target, str(self.weights))
            and entry.sequences >= (self.sequences or 1)
        )

    def _takes(self, entry: Entry) -> bool:
        """Return whether a model's context is right."""
        if self.context is None:
            return entry.usual_context
        if self.longer and self.target is Target.CPU:
            return entry.context >= self.context
        return entry.context == self.context


def require_agreement(
    artifact: Path,
    manifest: Manifest,
    wanted: Build,
    *,
    weights_asked: bool,
    may_have_more: bool,
) -> None:
    """Check that an artifact was converted with the wanted options.

    If `may_have_more` is True, it may have more sequences.

    Raises:
        UsageError: it was converted with other options.
    """
    for found, asked in _contradictions(manifest, wanted, weights_asked, may_have_more):
        raise UsageError(
            f"{artifact}: was converted with {found}, not {asked}; leave out these options, or give the GGUF "
            "to convert it with them"
        )


def _contradictions(
    manifest: Manifest, wanted: Build, weights_asked: bool, may_have_more: bool
) -> Iterator[tuple[str, str]]:
    if wanted.context not in (None, manifest.context):
        yield f"a context of {manifest.context} tokens", str(wanted.context)
    has, asked = manifest.sequences, wanted.sequences
    if asked is not None and (asked > has or (asked < has and not may_have_more)):
        yield f"{counted(has, 'sequence')} at a time", str(asked)
    if weights_asked and not _are_stored_so(manifest, wanted.weights):
        formats = sorted({tensor.weights.value for tensor in manifest.tensors})
        yield f"weights stored as {', '.join(formats)}", str(wanted.weights)


def _are_stored_so(manifest: Manifest, choice: WeightChoice) -> bool:
    """Return whether the stored formats are the requested ones; tensors that do not support theirs are
    ignored."""
    return all(
        choice.format_of(kind) is tensor.weights
        for tensor in manifest.tensors
        if tensor.fallback is None and (kind := kind_of(tensor.projection)) is not None
    )


def free_name(entry: Entry, key: str, others: Iterable[Entry]) -> str:
    """Return the entry's name; if another entry has the same name, append how the two differ."""
    by_name = {other.name: other for other in others}
    if (holder := by_name.get(entry.name)) is None:
        return entry.name
    name = "-".join([entry.name, *_differences(entry, holder)])
    return name if name not in by_name else f"{name}-{key[:KEY_DIGITS]}"


def _differences(entry: Entry, holder: Entry) -> Iterator[str]:
    """Yield the differences between two entries, in words that fit into a name."""
    if entry.quantisation != holder.quantisation:
        yield entry.quantisation
    if entry.weight_choice != holder.weight_choice:
        yield entry.weight_choice.replace(",", "+").replace("=", ".")
    if entry.context != holder.context:
        yield str(entry.context)
    if entry.sequences != holder.sequences:
        yield f"x{entry.sequences}"
    if entry.target is not holder.target:
        yield entry.target.value
