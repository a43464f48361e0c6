"""An artifact for several sequences, opened for fewer, is bit for bit the one converted for so few."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from by_hand import run_tokens, same_bits, states
from converting import build
from slow import slow_but

from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends import circumstances, open_verifier
from anespec.validate.kept import why_exactness_is_unknown

CONTEXT = 512
TOKENS = [int(token) for token in np.random.default_rng(7).integers(0, 40, 300)]
PORTABLE = ("torch", "openvino", "mlx")


@pytest.fixture(scope="module")
def artifacts(families: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same GGUF converted for one sequence, for two and for four."""
    folder = tmp_path_factory.mktemp("sequences")
    return {
        count: build(
            families / "llama.gguf", folder / str(count), target=Target.CPU, context=CONTEXT, sequences=count
        ).path
        for count in (1, 2, 4)
    }


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(PORTABLE, "openvino"))
@pytest.mark.parametrize("fewer", [1, 2])
def test_logits_and_states_are_those_of_an_artifact_for_so_few(
    artifacts: dict[int, Path], backend: str, fewer: int
) -> None:
    found = []
    for artifact in (Artifact(artifacts[fewer]), Artifact(artifacts[4], sequences=fewer)):
        with closing(open_verifier(artifact, backend, 1)) as verifier:
            assert verifier.shape.sequences == fewer
            found.append((verifier.shape, run_tokens(verifier, TOKENS, width=64), states(verifier)))
    (shape, logits, held), (other_shape, other_logits, other_held) = found
    assert shape == other_shape
    assert same_bits(logits, other_logits)
    assert all((one == other).all() for one, other in zip(held, other_held, strict=True))


@pytest.mark.slow
def test_a_verdict_holds_for_so_many_alone(artifacts: dict[int, Path]) -> None:
    fewer, whole = Artifact(artifacts[4], sequences=1), Artifact(artifacts[4])
    one, all_of_them = (circumstances(artifact, "torch", 1) for artifact in (fewer, whole))
    assert (one.sequences, all_of_them.sequences) == (1, None)
    assert one != all_of_them == one.with_all_sequences()
    assert why_exactness_is_unknown(fewer, one) == "this model was never checked on this machine"


def test_a_backend_that_looks_at_every_slot_runs_them_all(
    artifacts: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from anespec.runtime.backends.coreml.backend import CoreMLBackend

    monkeypatch.setattr(CoreMLBackend, "unavailable", lambda _: None)
    monkeypatch.setattr(CoreMLBackend, "library_version", lambda _: "9")
    assert circumstances(Artifact(artifacts[4], sequences=1), "coreml-cpu").sequences is None


def test_states_that_are_not_used_need_no_room(
    artifacts: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from anespec.runtime.backends.portable import soundness
    from anespec.system.errors import ArtifactError

    # In f32, a fourth of what all sequences take.
    memory = 2 * Artifact(artifacts[1]).manifest.state_bytes
    monkeypatch.setattr(soundness, "machine_memory", lambda: memory)
    open_verifier(Artifact(artifacts[4], sequences=1), "openvino", 1).close()
    with pytest.raises(ArtifactError, match="K/V states take"):
        open_verifier(Artifact(artifacts[4]), "openvino", 1)
