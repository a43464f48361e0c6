"""Run `anespec` with a verifier that loses its state in every 40th pass, like a killed native worker.

Usage: python benchmarks/losing_daemon.py serve MODEL ...
"""

import itertools

from anespec.__main__ import main
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.passes import PassPlan, PassResult, StateLostError

PASSES_BETWEEN = 40


class _Losing:
    """Runs a verifier's passes, but fails every 40th."""

    def __init__(self) -> None:
        self._number = itertools.count(1)
        self._run = ArtifactVerifier._pass

    def __call__(self, verifier: ArtifactVerifier, plan: PassPlan) -> PassResult:
        if next(self._number) % PASSES_BETWEEN == 0:
            self._run(verifier, plan)  # The pass ends, but its results are lost.
            raise StateLostError("the benchmark lost the state on purpose")
        return self._run(verifier, plan)


if __name__ == "__main__":
    losing = _Losing()
    ArtifactVerifier._pass = lambda verifier, plan: losing(verifier, plan)  # type: ignore[method-assign]
    main()
