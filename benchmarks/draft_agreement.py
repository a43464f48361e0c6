"""Measure what a second model of planted agreement brings: tokens per second with it and without.

    python benchmarks/draft_agreement.py big.gguf small.gguf [--agreement 0.5 0.7 0.9] [--tokens 96] [--json]

Both files need one vocabulary, as `random_gguf.py` writes it. The small model runs its passes, and so takes
its time; its results are then replaced: at a planted share of the places by the token that the big model
writes next, with that share as its probability, elsewhere by another token. Runs with and without drafts take
turns. The exit code is 1 if a text differs, or if the first agreement is slower than no drafts by more than a
machine's noise.
"""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from measure import emit, machine, show_table
from smoke_options import MODEL, command_line
from soak_round import WatchedVerifier
from spending import proven
from subjects import artifact_of

from anespec.convert.options import ConvertOptions
from anespec.manifests.schema import Target
from anespec.runtime.backends import OPENVINO, open_verifier
from anespec.runtime.draft_model.continuing import Continuing
from anespec.runtime.draft_model.source import DraftModelSource
from anespec.runtime.draft_model.translation import SameIds
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.passes import Candidate, PassPlan, PassResult, RowLogits, Verifier
from anespec.runtime.speculation.cost_measurement import measure_pass_costs
from anespec.runtime.speculation.pass_costs import PassCosts

LEAST = 0.97
"""The least speedup at the least agreement: below 1 by what a machine's noise may take."""

PROMPT_TOKENS = 64


class PlantedVerifier(WatchedVerifier):
    """A verifier whose rows predict the next token of `text` at a share of the places."""

    def __init__(self, verifier: Verifier) -> None:
        super().__init__(verifier)
        self.text: Sequence[int] = ()
        self.agreement = 0.0
        self._places: Mapping[int, int] = {}

    def submit(self, plan: PassPlan) -> None:
        """Note where the rows of the pass stand, and start it."""
        self._places = {lane: row.position for lane, row in enumerate(plan.rows)}
        super().submit(plan)

    def wait(self) -> PassResult:
        """Return the planted results of the pass."""
        return {lane: self._planted(self._places[lane], row) for lane, row in super().wait().items()}

    def _planted(self, place: int, row: RowLogits) -> RowLogits:
        known = self.text[place + 1] if place + 1 < len(self.text) else 0
        agrees = np.random.default_rng((place, len(self.text))).random() < self.agreement
        token = known if agrees else (known + 1) % self.shape.vocabulary
        # The probability of the token is the agreement, if all others have a logit of 0.
        logit = math.log(self.agreement / (1 - self.agreement) * (self.shape.vocabulary - 1))
        logits = row.logits
        if logits is not None:
            logits = np.zeros_like(logits)
            logits[token] = logit
        best = Candidate(token, logit)
        return replace(row, logits=logits, best=best, top=(best,) if row.top else ())


@dataclass(frozen=True)
class Figures:
    """One agreement: the speed relative to no drafts, and what was proposed and accepted."""

    agreement: float
    speedup: float
    tokens_per_pass: float
    proposed: int
    accepted: int


def written(
    verifier: Verifier, costs: PassCosts, prompt: Sequence[int], tokens: int, source: DraftModelSource | None
) -> tuple[list[int], float, RequestStats]:
    """Return a greedy text, the seconds that it took after the prompt, and its counts."""
    engine = Engine(verifier, proven(verifier.shape), source, costs=costs)
    found: list[int] = []
    began, counts = 0.0, RequestStats(prompt_tokens=len(prompt))
    for event in engine.generate(Request(tuple(prompt), tokens)):
        if event.error is not None:
            raise SystemExit(f"a sequence failed: {event.error}")
        began = began or time.perf_counter()
        found += [token.id for token in event.tokens]
        counts = event.statistics
    took = time.perf_counter() - began
    engine.close()
    return found, took, counts


def measured(target: Verifier, draft: PlantedVerifier, options: argparse.Namespace) -> list[Figures]:
    """Return the figures of each agreement; exit with an error if a text differs."""
    costs = measure_pass_costs(target, proven(target.shape))
    prompt = np.random.default_rng(5).integers(3, target.shape.vocabulary, PROMPT_TOKENS).tolist()
    expected, _, _ = written(target, costs, prompt, options.tokens, None)
    draft.text = (*prompt, *expected)
    ratios: dict[float, list[float]] = {agreement: [] for agreement in options.agreement}
    last: dict[float, RequestStats] = {}
    for _ in range(options.rounds):
        _, plain, _ = written(target, costs, prompt, options.tokens, None)
        for agreement in options.agreement:
            draft.agreement = agreement
            with closing(
                DraftModelSource(Continuing(draft), lambda: SameIds(draft.shape.vocabulary))
            ) as source:
                found, took, counts = written(target, costs, prompt, options.tokens, source)
            if found != expected:
                raise SystemExit(f"agreement {agreement}: the text differs from the one without drafts")
            ratios[agreement].append(plain / took)
            last[agreement] = counts
    return [
        Figures(
            agreement,
            median(ratios[agreement]),
            counts.decoded_tokens / max(1, counts.decode_passes),
            counts.proposed,
            counts.accepted,
        )
        for agreement, counts in last.items()
    ]


def main() -> None:
    """Measure every agreement, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--agreement", type=float, nargs="+", default=[0.5, 0.7, 0.9])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    smoke = (MODEL, MODEL, "--tokens", 16, "--rounds", 1)
    options = parser.parse_args(command_line(parser, *smoke))
    convert = ConvertOptions(target=Target.CPU, context=512)
    with (
        closing(open_verifier(artifact_of(options.target, convert), OPENVINO)) as target,
        closing(open_verifier(artifact_of(options.draft, convert), OPENVINO)) as small,
    ):
        if target.shape.vocabulary != small.shape.vocabulary:
            raise SystemExit(f"{options.draft}: has another vocabulary than {options.target}")
        found = measured(target, PlantedVerifier(small), options)
    if options.json:
        emit({"machine": machine(), "agreements": [asdict(each) for each in found]})
    else:
        show_table(
            ["agreement", "speedup", "tokens per pass", "proposed", "accepted"],
            [
                [
                    f"{each.agreement:.2f}",
                    f"{each.speedup:.2f}",
                    f"{each.tokens_per_pass:.2f}",
                    str(each.proposed),
                    str(each.accepted),
                ]
                for each in found
            ],
        )
    if found[0].speedup < LEAST and not options.smoke:
        raise SystemExit(f"an agreement of {found[0].agreement} is slower than no drafts")


if __name__ == "__main__":
    main()
