"""Measure how much a background check slows requests: seconds of their passes with it and without.

    python benchmarks/beside.py MODEL.gguf
    python benchmarks/beside.py model.anespec --requests 40 --json

The same request runs again and again: on a model without a check, on one that is being checked, and without a
check again. After each request there is a pause, in which the check continues. Only passes before anything is
proven count, so that all do the same work. The benchmark fails if a text changes when something is proven.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from measure import Budget, emit, machine, show_budgets
from smoke_options import MODEL, command_line
from subjects import artifact_of

import anespec
from anespec.manifests.schema import Target

TOKENS = 32
PAUSE = 0.5
MAX_RATIO = 1.3
PROMPT = "Once upon a time"


def requests(artifact: Path, gates: str, count: int, threads: int | None) -> tuple[list[float], set[str]]:
    """Return the seconds per pass of each request, and the texts; with checks, only while they run."""
    found: list[float] = []
    texts: set[str] = set()
    with anespec.load(artifact, gates=gates, threads=threads, draft_memory="none") as model:
        seconds_of_a_pass(model)
        while len(found) < count and (gates == "never" or model.checking is not None):
            time.sleep(PAUSE)
            is_same_work = not model.speculates
            seconds, text, accepted = seconds_of_a_pass(model)
            texts.add(text)
            if is_same_work and not accepted:
                found.append(seconds)
    return found, texts


def seconds_of_a_pass(model: anespec.Model) -> tuple[float, str, int]:
    """Return the seconds of a decoding pass of one request, its text, and its number of accepted drafts."""
    found = model.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True)
    figures = found.statistics
    return figures.decode_seconds / max(1, figures.passes), found.text, figures.accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="a GGUF, which is converted for this, or an artifact")
    parser.add_argument("--requests", type=int, default=30, help="the most requests of each kind")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(command_line(parser, MODEL, "--requests", 3))
    source = options.model
    if source.is_file():
        source = artifact_of(source, anespec.ConvertOptions(target=Target.CPU))
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / source.name
        shutil.copytree(source, artifact, ignore=shutil.ignore_patterns("gates"))
        most, threads = options.requests, options.threads
        before, plain = requests(artifact, "never", most, threads)
        beside, texts = requests(artifact, "later", most, threads)
        after, again = requests(artifact, "never", most, threads)
    if len(plain | texts | again) > 1:
        raise SystemExit("the text changed while the gates ran in the background")
    alone = [*before, *after]
    if not beside:
        raise SystemExit("the check ended before a request ran; use a larger model")
    ratio = statistics.median(beside) / statistics.median(alone)
    budgets = [Budget("a request's pass while the gates run / alone", ratio, MAX_RATIO)]
    if options.json:
        seconds = {"beside": beside, "alone": alone}
        emit({**machine(), "pass_seconds": seconds, "budgets": [b.as_json() for b in budgets]})
        return
    for name, found in (("during a check", beside), ("alone", alone)):
        print(
            f"a pass {name}: {1e3 * statistics.median(found):.2f} ms in the median of {len(found)} requests"
        )
    show_budgets(budgets)


if __name__ == "__main__":
    main()
