"""Compare a million tokens generated with everything that is proven with the plain text: none may differ.

    python benchmarks/soak.py [--tokens 1000000] [--drafts all] [--seed 0] [--work build/soak] [--models DIR]
        [--kv-form FORM] [--backend NAME] [--only MODEL ...]

Drafts come from prompt lookup, from a source that knows the text, and from `auto` with an empty memory and
with a memory of all earlier rounds; with --drafts auto only from `auto`, twice each; with --drafts model from
a second model with another vocabulary, translated in each way, and beside `auto`. Rounds alternate over
several models, block sizes, contexts and backends (all on one with --backend), on one core. Results are
written to WORK/soak.json after every round, and a later run with the same drafts and seed continues there.
"""

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from measure import emit, machine, show_table
from smoke_options import FOLDER, command_line
from soak_requests import soak_requests
from soak_round import SoakCount, soak_round

from anespec.convert.options import ConvertOptions
from anespec.convert.pipeline import convert
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import KVForm, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.models.draft_memory import memory_for_measuring
from anespec.models.draft_model import translation_between
from anespec.runtime.backends import BACKENDS, OPENVINO, circumstances, open_verifier
from anespec.runtime.draft_model.continuing import Continuing
from anespec.runtime.draft_model.source import DraftModelSource
from anespec.runtime.draft_model.weighed import WeighedSource
from anespec.runtime.drafters import DraftSource
from anespec.runtime.drafters.lookup import LookupSettings, LookupSource
from anespec.runtime.drafters.registry import open_source
from anespec.runtime.options import LoadOptions
from anespec.runtime.passes import Verifier
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import GrammarTokens
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.validate.exactness.repeat_process import run_elsewhere
from anespec.validate.gates import recorded_exactness
from anespec.validate.kept import kept_exactness
from anespec.validate.sample.prompts import PROMPTS, SAMPLE_PROMPTS

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from embedded_variants import write_renumbered

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("context", "naive", "intersect")
HUGGING_FACE_LOOKUP = LookupSettings(n_max=2, choose="leftmost")
MEMORY_BYTES = 4 << 20
ALL, AUTO, MODEL = "all", "auto", "model"
REQUESTS = 6
"""The requests of a round: more than there are regions, so that some wait."""


@dataclass(frozen=True)
class Subject:
    """A model, how it is converted, and its backend."""

    model: str
    weights: WeightFormat
    target: Target
    block: int
    context: int
    sequences: int
    backend: str

    @property
    def turns(self) -> int:
        """Return in which turns it has a round: every one, or every tenth for torch, which is ten times
        slower."""
        return 10 if self.backend == "torch" else 1

    @property
    def name(self) -> str:
        """Return the name of its folder, also used in the report."""
        return f"{self.model}-{self.weights}-{self.target}-b{self.block}-c{self.context}x{self.sequences}"


EMBEDDED, F16, Q8_0, RINGED = "model", "stories260K.F16", "stories260K.Q8_0", "gemma3"
HYBRID, RECURRENT, DELTA, SUMMED = "granitehybrid", "mamba2", "qwen35", "falcon_h1"
MIXTURE, DELTA_MIXTURE, SINKS = "olmoe", "qwen35moe", "gpt-oss"
CPU, MAC = Target.CPU, Target.MAC
SUBJECTS = (
    Subject(EMBEDDED, WeightFormat.INT8_CHANNEL, CPU, 4, 512, 2, "openvino"),
    Subject(F16, WeightFormat.FP16, CPU, 8, 448, 3, "openvino"),
    Subject(Q8_0, WeightFormat.INT8_CHANNEL, CPU, 2, 320, 4, "openvino"),
    Subject(EMBEDDED, WeightFormat.INT4_BLOCK32, CPU, 4, 256, 2, "openvino"),
    Subject(RINGED, WeightFormat.INT8_BLOCK32, CPU, 5, 384, 3, "openvino"),
    Subject(EMBEDDED, WeightFormat.INT8_CHANNEL, CPU, 4, 512, 2, "torch"),
    Subject(F16, WeightFormat.FP16, MAC, 6, 320, 2, "torch"),
    Subject(HYBRID, WeightFormat.INT8_CHANNEL, CPU, 4, 512, 2, "openvino"),
    Subject(RECURRENT, WeightFormat.FP16, CPU, 5, 320, 4, "openvino"),
    Subject(DELTA, WeightFormat.INT8_CHANNEL, CPU, 4, 512, 2, "openvino"),
    Subject(SUMMED, WeightFormat.INT8_BLOCK32, CPU, 8, 256, 4, "openvino"),
    Subject(HYBRID, WeightFormat.FP16, CPU, 4, 256, 2, "torch"),
    Subject(MIXTURE, WeightFormat.INT8_CHANNEL, CPU, 4, 512, 2, "openvino"),
    Subject(DELTA_MIXTURE, WeightFormat.INT8_CHANNEL, CPU, 4, 256, 2, "openvino"),
    Subject(SINKS, WeightFormat.FP16, CPU, 8, 320, 3, "openvino"),
)


class Report:
    """The results so far, by subject, in a file."""

    def __init__(self, path: Path, drafts: str, seed: int) -> None:
        self.path, self.drafts, self.seed = path, drafts, seed
        self.counts: dict[str, SoakCount] = {}
        if path.exists():
            kept = json.loads(path.read_text())
            begun = f"--drafts {kept['drafts']} --seed {kept['seed']}"
            if begun != f"--drafts {drafts} --seed {seed}":
                raise SystemExit(f"{path}: was started with {begun}; give that or another --work")
            self.counts = {name: SoakCount.model_validate(count) for name, count in kept["subjects"].items()}

    @property
    def total(self) -> SoakCount:
        """Return the counts of all subjects."""
        return sum(self.counts.values(), SoakCount())

    def add(self, key: str, count: SoakCount) -> None:
        """Record a round on disk."""
        self.counts[key] = self.counts.get(key, SoakCount()) + count
        kept = {
            "drafts": self.drafts,
            "seed": self.seed,
            "subjects": {name: c.model_dump() for name, c in self.counts.items()},
        }
        self.path.with_suffix(".new").write_text(json.dumps(kept, indent=2))
        self.path.with_suffix(".new").replace(self.path)


class Bench:
    """An open subject: its verifier, what is proven of it, and tokens to cut prompts from."""

    def __init__(self, subject: Subject, gguf: Path, work: Path, form: KVForm | None, second: bool) -> None:
        """Open the subject. With `second`, so is a second model for each way to translate its drafts."""
        self.subject = subject
        output = work / f"{subject.name}{f'-{form}' if form is not None else ''}.anespec"
        if not output.exists():
            options = ConvertOptions(
                target=subject.target,
                block=subject.block,
                context=subject.context,
                sequences=subject.sequences,
                kv_form=form,
                weights=WeightChoice(subject.weights),
            )
            with GGUFFile(gguf) as file:
                convert(ConversionPlan(SourceModel(file), options), output)
        artifact = Artifact(output)
        self.verifier: Verifier = open_verifier(artifact, subject.backend, 1)
        here = circumstances(artifact, subject.backend, 1)
        verdict = kept_exactness(artifact, here, "quick") or recorded_exactness(
            artifact, self.verifier, here, "quick", lambda *_: None, run_elsewhere(artifact, here)
        )
        self.proven = Proven.of(verdict, self.verifier.shape)
        with GGUFFile(artifact.tokens_path()) as tokens:
            self.tokenizer = tokenizer = Tokenizer.from_gguf(tokens)
        self.warm = self._auto()
        self.end_ids = tokenizer.end_ids
        self.grammar_tokens = GrammarTokens(tokenizer, self.verifier.shape.vocabulary)
        self.second = [second_model(tokenizer, work, way) for way in WAYS] if second else []
        self.corpus = [token for text in (*PROMPTS, *SAMPLE_PROMPTS) for token in tokenizer.encode(text)]

    @property
    def key(self) -> str:
        """Return its name in the report."""
        return f"{self.subject.name}-{self.subject.backend}"

    def round(self, drafts: str, seed: int, number: int) -> SoakCount:
        """Run round `number`, which is the same whenever it is run."""
        rng = np.random.default_rng([seed, number])
        shape = self.verifier.shape
        requests = list(soak_requests(self.corpus, shape, self.end_ids, rng, REQUESTS, self.grammar_tokens))
        with ExitStack() as opened:
            cold = [opened.enter_context(closing(self._auto())) for _ in range(2)]
            sources: list[DraftSource | None] = [cold[0], self.warm, cold[1], self.warm]
            if drafts == MODEL:
                sources = [*self.second, WeighedSource(cold[0], self.second[0])]
            elif drafts == ALL:
                sources = [LookupSource(HUGGING_FACE_LOOKUP), None, cold[0], self.warm]
            return soak_round(self.verifier, self.proven, requests, sources, rng)

    def _auto(self) -> DraftSource:
        """Return the default source, with an empty memory of its own."""
        options = LoadOptions(drafter="auto", draft_memory_size=MEMORY_BYTES)
        memory = partial(memory_for_measuring, self.tokenizer.vocabulary_hash, options)
        source = open_source(options, self.tokenizer, memory)
        assert source is not None
        return source


def second_model(tokenizer: Tokenizer, work: Path, way: str) -> DraftModelSource:
    """Open the embedded model with other ids for its tokens, which drafts for a vocabulary."""
    output = work / "second.anespec"
    if not output.exists():
        options = ConvertOptions(target=Target.CPU, context=512, sequences=4)
        with GGUFFile(write_renumbered(work / "second.gguf")) as file:
            convert(ConversionPlan(SourceModel(file), options), output)
    artifact = Artifact(output)
    with GGUFFile(artifact.tokens_path()) as tokens:
        translation = translation_between(tokenizer, Tokenizer.from_gguf(tokens), LoadOptions(translate=way))
    verifier = open_verifier(artifact, OPENVINO, 1)
    return DraftModelSource(Continuing(verifier), translation, verifier.close)


def benches(
    models: Path, work: Path, subjects: Sequence[Subject], form: KVForm | None, second: bool
) -> Iterator[Bench]:
    """Open the subjects whose models exist, with K/V in a form; None is the target's default."""
    folders = (ROOT / "embedded", models, ROOT / "tests" / "data" / "families")
    for subject in subjects:
        paths = [path for folder in folders if (path := folder / f"{subject.model}.gguf").exists()]
        if paths:
            yield Bench(subject, paths[0], work, form, second)
        else:
            print(f"skipped: {subject.model}.gguf, which is in none of {', '.join(map(str, folders))}")


def soak(opened: Sequence[Bench], report: Report, tokens: int, seconds_between_lines: float = 60.0) -> None:
    """Run rounds of all benches in turn until that many tokens are compared."""
    said = time.monotonic()
    done = {b.key: report.counts.get(b.key, SoakCount()).rounds * b.subject.turns for b in opened}
    for number in itertools.count(min(done.values(), default=0)):
        for bench in opened:
            if number < done[bench.key] or number % bench.subject.turns:
                continue
            if report.total.tokens >= tokens:
                return
            report.add(bench.key, bench.round(report.drafts, report.seed, number))
            if time.monotonic() - said > seconds_between_lines:
                said = time.monotonic()
                total = report.total
                print(f"{total.tokens} tokens, {total.differing} differ, {total.passes} passes", flush=True)


def main() -> None:
    """Soak, print the results, and fail if a token differs or something proven was never used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--drafts", choices=(ALL, AUTO, MODEL), default=ALL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "soak")
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared" / "models")
    parser.add_argument("--kv-form", type=KVForm, choices=list(KVForm), help="give it a --work of its own")
    parser.add_argument(
        "--backend", choices=[*BACKENDS], help="all subjects on this one; a --work of its own"
    )
    parser.add_argument("--again", action="store_true", help="discard the results of an earlier run")
    parser.add_argument("--subjects", type=int, default=len(SUBJECTS), help="how many of the first subjects")
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="the subjects of these models")
    smoke = ("--tokens", 1, "--subjects", 1, "--again", "--work", FOLDER / "soak")
    options = parser.parse_args(command_line(parser, *smoke))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    options.work.mkdir(parents=True, exist_ok=True)
    if options.again:
        (options.work / "soak.json").unlink(missing_ok=True)
    report = Report(options.work / "soak.json", options.drafts, options.seed)
    subjects = [each for each in SUBJECTS if not options.only or each.model in options.only]
    subjects = subjects[: options.subjects]
    if options.backend is not None:
        subjects = [*dict.fromkeys(replace(each, backend=options.backend) for each in subjects)]
    second = options.drafts == MODEL
    opened = list(benches(options.models, options.work, subjects, options.kv_form, second))
    soak(opened, report, options.tokens)
    unused = {
        bench.key: missing
        for bench in opened
        if (missing := report.counts.get(bench.key, SoakCount()).unused(bench.proven, bench.verifier.shape))
    }
    rows = [
        (
            key,
            *(
                str(getattr(count, name))
                for name in ("tokens", "differing", "passes", "accepted", "proposed", "forced")
            ),
        )
        for key, count in report.counts.items()
    ]
    show_table(("subject", "tokens", "differing", "passes", "accepted", "proposed", "forced"), rows)
    emit({"drafts": report.drafts, "soak": report.total.model_dump(), "unused": unused, **machine()})
    if report.total.differing or unused:
        sys.exit(1)


if __name__ == "__main__":
    main()
