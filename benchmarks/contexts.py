"""Compare a pass after few tokens in a long context with one in a short context, for `pass.py --contexts`."""

import contextlib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from measure import Budget, Timing, describe, machine, show_budgets, show_table
from subjects import artifact_of, narrowed, pass_of, prefill
from turns import Contestant, Key, take_turns

from anespec.convert.options import ConvertOptions
from anespec.runtime.backends import open_verifier
from anespec.runtime.passes import Verifier, run_pass

MAX_RATIO = 1.15
"""The allowed time of the pass in the longest context divided by the shortest (DESIGN.md section 9)."""


@dataclass(frozen=True)
class ContextReport:
    """The times by context and by rows of the pass."""

    options: Namespace
    machine: Mapping[str, str | int | float]
    passes: dict[Key, Timing]

    def budgets(self) -> list[Budget]:
        """Return the ratios of the longest context to the shortest."""
        short, long = min(self.options.contexts), max(self.options.contexts)
        return [
            Budget(
                f"{rows} rows after {self.options.past} tokens: context {long} / {short}",
                self.passes[str(long), rows].median / self.passes[str(short), rows].median,
                MAX_RATIO,
            )
            for rows in self.options.rows
        ]

    def as_json(self) -> dict[str, object]:
        """Return all figures."""
        return {
            **self.machine,
            "threads": self.options.threads,
            "past": self.options.past,
            "passes": {f"{context}/{rows}": t.as_json() for (context, rows), t in self.passes.items()},
            "budgets": [budget.as_json() for budget in self.budgets()],
        }

    def show(self) -> None:
        """Print the tables."""
        print(describe(self.machine))
        rows = [
            [str(context), *(f"{self.passes[str(context), rows].median:.1f}" for rows in self.options.rows)]
            for context in self.options.contexts
        ]
        show_table(("context \\ rows in the pass (ms)", *map(str, self.options.rows)), rows)
        print()
        show_budgets(self.budgets())


def measure_contexts(options: Namespace) -> ContextReport:
    """Time the same pass in artifacts of every context, which take turns."""
    where = machine()
    tokens = np.random.default_rng(1).integers(0, 256, options.past + max(options.rows)).tolist()
    contestants: dict[Key, Contestant] = {}
    with contextlib.ExitStack() as stack:
        for context in options.contexts:
            convert = ConvertOptions(target=options.target, block=options.block, context=context)
            artifact = artifact_of(options.gguf, convert)
            verifier: Verifier = open_verifier(artifact, options.backends[0], options.threads)
            stack.callback(verifier.close)
            prefill(verifier, tokens[: options.past])
            for rows in options.rows:
                plan = pass_of(verifier, tokens[options.past :][:rows], options.past)
                call = partial(run_pass, verifier, narrowed(verifier, plan))
                contestants[str(context), rows] = call
        return ContextReport(options, where, take_turns(contestants, options.rounds))
