"""Attack the daemon and other programs, and check that they keep working.

    python benchmarks/attack.py [--only PART ...] [--seed 0] [--pairs 500] [--mutants 5000] [--kills 40]

Parts: `pairs` (random requests to a daemon with drafts and to one without, for every draft source and model:
all texts are the same), `mutants` (damaged requests: no 5xx but 501), `kills` (convert, validate, datastore
build and the daemon, killed at random moments: nothing is lost), `page` (hostile texts in headless Chromium:
nothing runs). Each prints its counts or its failure; the exit code is 1 if any failed. The same seed gives
the same requests and damages. Only loopback addresses are used.
"""

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import hostile_texts
from faulty_clients import Oracle
from faulty_daemon import serving
from killed_programs import building, converting, survive, validating
from malformed_requests import send_mutants
from measure import describe, machine
from paired_requests import SOURCES, compare
from serving_scenarios import Bench, UnavailableError, kill, run_parts
from smoke_options import FOLDER, MODEL, ROOT, command_line

import anespec
from anespec.manifests.schema import Target

MODELS = (
    MODEL,
    *(ROOT.parent / "shared" / "models" / f"stories260K.{kind}.gguf" for kind in ("Q8_0", "F16")),
)
KILLS_OF_A_SCENARIO = 3


@dataclass(frozen=True)
class Attack:
    """The options of an attack, and the folder for its files."""

    options: argparse.Namespace
    folder: Path

    def artifact(self, gguf: Path) -> Path:
        """Convert the model once, for several sequences, and return the artifact."""
        found = self.folder / f"{gguf.stem}.anespec"
        if not found.exists():
            options = anespec.ConvertOptions(target=Target.CPU, context=512, sequences=4)
            anespec.convert_model(gguf, found, options)
        return found

    @property
    def cache(self) -> dict[str, str]:
        """Return the environment of a process that must not use results of earlier runs."""
        return {"XDG_CACHE_HOME": str(self.folder / "cache")}


def pairs(attack: Attack) -> str:
    """Check that drafts change no text, whatever the request."""
    options, asked, accepted = attack.options, 0, 0
    models = [path for path in options.models if path.exists()]
    for gguf in models:
        for source in options.sources:
            log = attack.folder / f"pairs-{gguf.stem}-{source}.log"
            artifact, cache = attack.artifact(gguf), attack.folder / "cache"
            accepted += compare(artifact, log, cache, source, options.pairs, options.seed)
            asked += options.pairs
    if not accepted:
        raise RuntimeError(f"no draft of {asked} pairs was accepted, so nothing was compared")
    sources = f"{len(models)} models, {len(options.sources)} sources"
    return f"{asked} pairs ({sources}), 0 differ, {accepted} drafts were accepted"


def mutants(attack: Attack) -> str:
    """Check that no damaged request gets a 5xx other than 501, and that none stops the daemon."""
    artifact, log = attack.artifact(attack.options.models[0]), attack.folder / "mutants.log"
    with serving(artifact, log, "--request-seconds", "5", environment=attack.cache) as daemon:
        sent = send_mutants(daemon, attack.options.mutants, attack.options.seed)
        if complaints := daemon.complaints():
            raise RuntimeError(f"the log has {len(complaints)} errors, first: {complaints[0]}")
    return f"{sent} damaged requests, 0 answered by a 5xx but 501"


def kills(attack: Attack) -> str:
    """Check that after any kill the next run gives the result of an undisturbed run."""
    gguf, source = attack.options.models[0], random.Random(attack.options.seed)
    artifact = attack.artifact(gguf)
    victims = (
        converting(gguf, attack.folder),
        validating(artifact, attack.folder),
        building(gguf, attack.folder),
    )
    found = [f"{v.name} {survive(v, attack.options.kills, source, attack.cache)}" for v in victims]
    daemon = 0
    with anespec.load(artifact, gates="now") as model:
        while daemon < attack.options.kills:
            folder = attack.folder / f"daemon-{daemon}"
            folder.mkdir()
            kill(Bench(artifact, folder, Oracle(model), 0, 0.0))
            daemon += KILLS_OF_A_SCENARIO
    return f"killed while running: {', '.join(found)}, daemon {daemon}; 0 lost anything"


def page(attack: Attack) -> str:
    """Check that no text becomes an element or a script of the page."""
    if (reason := hostile_texts.missing()) is not None:
        raise UnavailableError(reason)
    if harm := list(hostile_texts.attempts(attack.options.vectors)):
        raise RuntimeError(f"{len(harm)} texts caused harm, the first {harm[0]}")
    count = min(attack.options.vectors, len(hostile_texts.VECTORS))
    return f"{count} texts x {len(hostile_texts.MODES)} modes, 0 caused harm"


PARTS: Mapping[str, Callable[[Attack], str]] = {
    "pairs": pairs,
    "mutants": mutants,
    "kills": kills,
    "page": page,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument(
        "--models", type=Path, nargs="+", default=list(MODELS), help="GGUFs; missing ones are skipped"
    )
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=500, help="requests for each model and source")
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=40, help="kills of each program")
    parser.add_argument("--vectors", type=int, default=len(hostile_texts.VECTORS), help="texts in each mode")
    smoke = (
        "--models",
        MODEL,
        "--sources",
        "auto",
        "--pairs",
        20,
        "--mutants",
        200,
        "--kills",
        1,
        "--vectors",
        5,
    )
    options = parser.parse_args(command_line(parser, *smoke))
    print(describe(machine()), flush=True)
    # Compiling the drafters takes a minute and is not part of any attack.
    os.environ.setdefault("NUMBA_CACHE_DIR", str(FOLDER / "compiled"))
    with tempfile.TemporaryDirectory(prefix="anespec-attack-", ignore_cleanup_errors=True) as folder:
        attack = Attack(options, Path(folder))
        held = run_parts(PARTS, options.only, attack)
    sys.exit(not held)


if __name__ == "__main__":
    main()
