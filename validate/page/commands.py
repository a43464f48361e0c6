"""Return the command lines that make and check an artifact like this one."""

import shlex
from collections import Counter
from collections.abc import Sequence

from anespec.manifests.schema import Manifest, StoredTensor, WeightFormat
from anespec.manifests.verdicts import RunEnvironment
from anespec.manifests.weight_choice import GROUPS, KINDS, WeightChoice, kind_of
from anespec.validate.quality.verdict import QualityVerdict
from anespec.validate.sample.figures import SampleRun

MAX_COMMANDS = 12


def convert_command(manifest: Manifest, artifact: str) -> str:
    """Return the command that converts the GGUF to shards like these, with every choice written out."""
    options = [
        "--target", manifest.target.value, "--block", str(manifest.block), "--context", str(manifest.context),
        "--sequences", str(manifest.sequences), "--weights", str(weight_choice(manifest.tensors)),
        "--attention", manifest.attention.value, "--kv-form", manifest.kv_form.value,
        "--layout", manifest.functions[0].layout.value,
        "--topology", ",".join(map(str, manifest.topology)),
        "--head-shards", str(len(manifest.head_shards)),
    ]  # fmt: skip
    return _line("convert", manifest.source.name, "-o", artifact, *options)


def validate_commands(
    artifact: str, places: Sequence[RunEnvironment], quality: Sequence[QualityVerdict]
) -> tuple[str, ...]:
    """Return the commands that run the gates on each backend and number of threads, and score each text."""
    gates = [_line("validate", artifact, *_where(place)) for place in places]
    texts = [
        _line("validate", artifact, *_where(verdict.circumstances), "--gate", "quality", *_text(verdict))
        for verdict in quality
    ]
    return tuple(dict.fromkeys([*gates, *texts]))[:MAX_COMMANDS]


def generate_commands(artifact: str, runs: Sequence[SampleRun]) -> tuple[str, ...]:
    """Return the commands that generate the samples again."""
    lines = [
        _line(
            "generate", artifact, *_where(run.circumstances), "-n", str(max(1, len(passage.pieces))),
            "--drafter", "lookup" if run.speculated else "none", "-p", passage.prompt,
        )
        for run in runs
        for passage in run.passages
    ]  # fmt: skip
    return tuple(dict.fromkeys(lines))[:MAX_COMMANDS]


def weight_choice(tensors: Sequence[StoredTensor]) -> WeightChoice:
    """Return the requested formats as far as the stored tensors show them; the most frequent is the default.

    If all tensors of a kind fell back to another format, its request is unknown and taken to be the default.
    """
    by_kind: dict[str, Counter[WeightFormat]] = {}
    for tensor in tensors:
        kind = kind_of(tensor.projection)
        if kind is not None and tensor.fallback is None:
            by_kind.setdefault(kind, Counter())[tensor.weights] += 1
    chosen = {kind: counts.most_common(1)[0][0] for kind, counts in by_kind.items()}
    if not chosen:
        return WeightChoice(tensors[0].weights)
    default = Counter(chosen.values()).most_common(1)[0][0]
    named: list[tuple[str, WeightFormat]] = []
    present = {kind_of(tensor.projection) for tensor in tensors}
    unnamed = WeightChoice(default)
    for group, kinds in GROUPS.items():
        formats = {chosen.get(kind, unnamed.format_of(kind)) for kind in kinds if kind in present}
        usual = {unnamed.format_of(kind) for kind in kinds}
        if len(formats) == 1 and formats != usual and any(kind in chosen for kind in kinds):
            named.append((group, formats.pop()))
    grouped = {kind for group, _ in named for kind in GROUPS[group]}
    named += [
        (kind, chosen[kind])
        for kind in KINDS
        if kind in chosen and kind not in grouped and chosen[kind] is not unnamed.format_of(kind)
    ]
    return WeightChoice(default, tuple(named))


def _where(circumstances: RunEnvironment) -> list[str]:
    return ["--backend", circumstances.backend, "--threads", str(circumstances.threads)]


def _text(verdict: QualityVerdict) -> list[str]:
    options = ["--quality", verdict.text.name, "--quality-tokens", str(verdict.text.scored)]
    if verdict.max_kl is not None:
        options += ["--max-kl", f"{verdict.max_kl:g}"]
    if verdict.max_perplexity_change is not None:
        options += ["--max-perplexity-change", f"{verdict.max_perplexity_change:g}%"]
    return options


def _line(verb: str, *words: str) -> str:
    """Return a command on one line, quoted for a shell."""
    file, *rest = words
    return " ".join(["anespec", verb, as_argument(file), *map(_quoted, rest)])


def as_argument(file: str) -> str:
    """Quote a file's name for a shell; a name that begins with "-" gets "./" before it."""
    return _quoted(f"./{file}" if file.startswith("-") else file)


def _quoted(word: str) -> str:
    """Quote a word; line ends are written as bash and zsh read them inside quotes."""
    if "\n" not in word:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{escaped}'"
