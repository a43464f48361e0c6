"""The gates' verdicts on an artifact, as most tests ask for them."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from elsewhere import same
from planted import golden_of

from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessVerdict
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.validate.exactness.gate import exactness_gate
from anespec.validate.golden.figures import GoldenVerdict

REPEATING = [(7 * i) % 11 + 3 for i in range(20)]


def quick_exactness(
    verifier: ArtifactVerifier, artifact: Artifact, backend: str, prompts: Sequence[Sequence[int]] = ()
) -> ExactnessVerdict:
    """The verdict of the quick exactness gate on an open verifier."""
    here = circumstances(artifact, backend, 1)
    return exactness_gate(verifier, here, form="quick", prompts=prompts, elsewhere=same(verifier, prompts))


def quick_exactness_of(
    artifact: Artifact, backend: str, prompts: Sequence[Sequence[int]] = ()
) -> ExactnessVerdict:
    """`quick_exactness` of a verifier of its own, with one thread."""
    with closing(open_verifier(artifact, backend, 1)) as verifier:
        return quick_exactness(verifier, artifact, backend, prompts)


def require_gates(artifact: Artifact, gguf: Path, backend: str) -> GoldenVerdict:
    """Assert that both gates pass; return the golden gate's verdict."""
    verdict = golden_of(artifact, gguf, backend)
    assert verdict.failures == ()
    assert quick_exactness_of(artifact, backend, [REPEATING]).allows_speculation
    return verdict
