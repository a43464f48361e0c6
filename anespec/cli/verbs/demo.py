"""Implement `anespec demo`: convert, validate and generate with the embedded model."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from anespec.cli.console import json_option, out, result_as_json, step_progress, timed_progress
from anespec.cli.option_flags import flags_of
from anespec.model import Model, load_model
from anespec.runtime.options import NO_FOLDER, BackendOptions, GenerationOptions, LoadOptions, WhenGates
from anespec.system import process_exit
from anespec.system.errors import ExactnessGateError, Interrupted, UsageError
from anespec.system.formatting import bytes_text, counted
from anespec.system.progress import SILENT

if TYPE_CHECKING:
    from anespec.results import Completion

DEMO_TOKENS = 160


@dataclass(frozen=True)
class DemoPrompt:
    """A prompt and the temperature at which it is continued."""

    text: str
    temperature: float


METHODS = (
    "class Point:\n"
    '    """A point in the plane."""\n\n'
    "    def __init__(self, x, y):\n"
    "        self.x = x\n"
    "        self.y = y\n\n"
    "    def __repr__(self):\n"
    '        return "Point(%r, %r)" % (self.x, self.y)\n\n'
    "    def __eq__(self, other):\n"
    "        if not isinstance(other, Point):\n"
    "            return NotImplemented\n"
    "        return self.x == other.x and self.y == other.y\n\n"
    "    def __lt__(self, other):\n"
    "        if not isinstance(other, Point):\n"
    "            return NotImplemented\n"
    "        return self.x < other.x and self.y < other.y\n\n"
    "    def __le__(self, other):"
)

TESTS = (
    "def test_read(self):\n"
    "    self.assertEqual(self.file.read(1), b'a')\n"
    "    self.assertEqual(self.file.read(2), b'bc')\n"
    "    self.assertEqual(self.file.tell(), 3)\n\n"
    "def test_write(self):"
)

PROMPTS = (DemoPrompt(TESTS, 0.0), DemoPrompt(METHODS, 0.6))


@click.command(short_help="Convert, validate and generate with the embedded model.")
@flags_of(BackendOptions, without=("threads", "worker_budget", "worker_timeout", "worker_loading", "verify"))
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Keep the artifact here.  [default: a temporary folder]"
)
@json_option
def demo(backend: str, keep: Path | None, as_json: bool) -> None:
    """Convert, validate and generate on the embedded model, and prove that speculation changed nothing.

    \b
    Example:
      anespec demo
    """
    try:
        with tempfile.TemporaryDirectory(prefix="anespec-demo-") as scratch:
            artifact = keep if keep is not None else Path(scratch) / "demo.anespec"
            facts = _convert(artifact, as_json) | _validate(artifact, backend, as_json)
            facts |= _generate(artifact, backend, as_json)
    except KeyboardInterrupt:
        kept = "nothing is kept" if keep is None else f"an artifact at {keep} is complete"
        raise Interrupted(f"interrupted; {kept}") from None
    with result_as_json(facts, shown=as_json):
        if not facts["identical"]:
            raise ExactnessGateError(
                "the text with speculation differs from the text without; this is a bug: please report it "
                "with the output of `anespec demo --json`"
            )


def _convert(artifact: Path, quiet: bool) -> dict[str, Any]:
    from anespec.convert.options import ConvertOptions
    from anespec.convert.pipeline import convert
    from anespec.convert.planning.plan import ConversionPlan
    from anespec.convert.source.model import SourceModel
    from anespec.embedded import model_path
    from anespec.gguf.container import GGUFFile
    from anespec.manifests.schema import Target

    with step_progress("1/3 convert", shown=not quiet) as report, GGUFFile(model_path()) as file:
        plan = ConversionPlan(SourceModel(file), ConvertOptions(target=Target.CPU))
        try:
            import anespec.convert.worker_imports  # noqa: F401

            done = convert(plan, artifact, on_progress=lambda shard: report(shard.name))
        except UsageError:
            raise UsageError(
                f"{artifact}: exists and is not the demo's artifact; give --keep another path"
            ) from None
    if not quiet:
        out().print(
            f"1/3 convert: {model_path().name} ({bytes_text(done.manifest.source.bytes)}) -> "
            f"{counted(len(done.manifest.layer_shards), 'layer shard')} and "
            f"{counted(len(done.manifest.head_shards), 'head shard')} in {done.seconds:.1f} s"
        )
    return {"convert_seconds": round(done.seconds, 3)}


def _validate(artifact: Path, backend: str, quiet: bool) -> dict[str, Any]:
    from anespec.embedded import model_path
    from anespec.manifests.store import Artifact
    from anespec.runtime.backends import resolve_backend
    from anespec.validate.exactness.gate import require_exactness
    from anespec.validate.gates import exactness_of, golden_gate
    from anespec.validate.golden.figures import require_golden
    from anespec.validate.page.write import write_page

    opened = Artifact(artifact)
    name = resolve_backend(backend, opened.manifest.target)
    with timed_progress("2/3 validate", shown=not quiet) as report:
        golden = golden_gate(opened, model_path(), name, None, report)
        exactness = exactness_of(opened, name, None, "quick", report)
    write_page(opened)
    require_golden(golden)
    require_exactness(exactness)
    held = [verdict.invariance.value for verdict in exactness.invariances if verdict.proven]
    if not quiet:
        cosine = min(figures.cosine for figures in golden.shards)
        out().print(
            f"2/3 validate on {name}: it computes what the GGUF means (golden gate: {golden.standing}, worst "
            f"cosine of a shard {cosine:.6f}), and guessed tokens change no text (exactness gate: "
            f"{exactness.standing})"
        )
    return {
        "backend": name,
        "golden": golden.standing.value,
        "exactness": exactness.standing.value,
        "invariances": held,
    }


@dataclass(frozen=True)
class _Pair:
    """One prompt continued without and with speculation."""

    prompt: DemoPrompt
    plain: "Completion"
    drafted: "Completion"

    @property
    def identical(self) -> bool:
        """Return whether the texts with and without speculation are equal."""
        return (self.plain.output_ids, self.plain.text) == (self.drafted.output_ids, self.drafted.text)

    def facts(self) -> dict[str, Any]:
        """Return the object for --json."""
        plain, drafted = self.plain.statistics, self.drafted.statistics
        return {
            "prompt": self.prompt.text,
            "temperature": self.prompt.temperature,
            "text": self.drafted.text,
            "identical": self.identical,
            "tokens": len(self.drafted.output_ids),
            "passes_without": plain.passes,
            "passes_with": drafted.passes,
            "tokens_per_pass": round(drafted.tokens_per_pass, 3),
            "seconds_without": round(plain.decode_seconds, 3),
            "seconds_with": round(drafted.decode_seconds, 3),
        }


def _generate(artifact: Path, backend: str, quiet: bool) -> dict[str, Any]:
    model = load_model(
        artifact, LoadOptions(backend=backend, draft_memory=NO_FOLDER, gates=WhenGates.NOW), SILENT
    )
    try:
        pairs = [
            _Pair(prompt, _complete(model, prompt, False), _complete(model, prompt, True))
            for prompt in PROMPTS
        ]
    finally:
        process_exit.keep(model)
    if not quiet:
        _show(pairs)
    return {
        "identical": all(pair.identical for pair in pairs),
        "runs": [pair.facts() for pair in pairs],
    }


def _complete(model: Model, prompt: DemoPrompt, speculate: bool) -> "Completion":
    options = GenerationOptions(
        max_tokens=DEMO_TOKENS, temperature=prompt.temperature, seed=1, speculate=speculate
    )
    return model.generate(prompt.text, options)


def _show(pairs: list[_Pair]) -> None:
    console = out()
    console.print("3/3 generate, without and with speculation:\n")
    console.print(pairs[0].prompt.text, style="dim", end="", markup=False)
    console.print(pairs[0].drafted.text, markup=False)
    table = Table("temperature", "tokens", "passes\nwithout", "passes\nwith", "tokens\nper pass", "same text")
    for pair in pairs:
        table.add_row(
            str(pair.prompt.temperature),
            str(len(pair.drafted.output_ids)),
            str(pair.plain.statistics.passes),
            str(pair.drafted.statistics.passes),
            f"{pair.drafted.statistics.tokens_per_pass:.2f}",
            "yes" if pair.identical else "NO",
        )
    console.print()
    console.print(table)
    console.print(
        "\nA pass runs the model once; right guesses give several tokens a pass. Next, with a model of yours "
        "or of the Hugging Face hub:\n  anespec chat FILE.gguf\n  anespec chat hf:OWNER/REPO"
    )
