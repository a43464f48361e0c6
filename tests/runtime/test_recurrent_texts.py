"""Texts of hybrids: neither drafts, widths, reused prefixes nor neighbours change them, and folds happen."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converting import build_once
from drafting import OracleSession, SourceOf
from family_files import FAMILIES
from once import Once
from slow import slow_but
from soak_round import WatchedVerifier

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.drafters import Draft
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.kv.saved_prefix import read_prefix, write_prefix
from anespec.runtime.passes import Verifier
from anespec.runtime.proven import Proven

PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(3, 500, 140))
LENGTHS = (100, 63, 64, 128, 65)
"""Of prompts that begin alike: a prefix is reused within a chunk of 64, at its end and behind it."""


def artifact_of(once: Once, folder: Path, model: str) -> Artifact:
    options: dict[str, Any] = {
        "target": Target.CPU,
        "context": 192,
        "sequences": 2,
        "weights": WeightChoice(WeightFormat.FP16),
    }
    return Artifact(build_once(once, FAMILIES / f"{model}.gguf", folder / "m.anespec", **options))


def plain_text(verifier: Verifier, request: Request, width: int = 4) -> list[int]:
    """The text in passes of one width, each from the first token on, without drafts."""
    engine = Engine(verifier, Proven(speculate=False, widths=(width,), reuse_prefixes=False))
    return [token.id for event in engine.generate(request) for token in event.tokens]


MODELS = {
    "granitehybrid openvino": ("granitehybrid", "openvino"),
    "granitehybrid torch": ("granitehybrid", "torch"),
    "mamba2 openvino": ("mamba2", "openvino"),
    "qwen35 openvino": ("qwen35", "openvino"),
    "granitehybrid mlx": ("granitehybrid", "mlx"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(MODELS, "granitehybrid openvino"))
def test_drafts_widths_and_reused_prefixes_leave_texts_the_same(
    case: str, once: Once, tmp_path: Path
) -> None:
    model, backend = MODELS[case]
    artifact = artifact_of(once, tmp_path, model)
    requests = [Request(PROMPT[:count], 30) for count in LENGTHS]
    plain, drafted = open_verifier(artifact, backend, 1), open_verifier(artifact, backend, 1)
    # Torch's products at one width do not depend on the other rows; at two widths they do on some processors.
    widths = (64,) if backend == "torch" else (4, 64)
    texts = {tuple(request.prompt): plain_text(plain, request, widths[0]) for request in requests}

    def session(tenant: str, prompt: Sequence[int]) -> OracleSession:
        return OracleSession([*prompt, *texts[tuple(prompt)]], len(prompt), wrong_each=4)

    watched = WatchedVerifier(drafted)
    proven = Proven(speculate=True, widths=widths, region_independent=True, reuse_prefixes=True)
    engine = Engine(watched, proven, SourceOf(session))
    numbers = {engine.submit(request): request for request in requests}
    found: dict[int, list[int]] = {number: [] for number in numbers}
    reused = 0
    while engine.busy:
        for event in engine.step():
            found[event.sequence] += [token.id for token in event.tokens]
            reused += event.statistics.reused_tokens if event.finish else 0
    assert [found[number] for number in numbers] == [texts[tuple(r.prompt)] for r in requests]
    assert all(len(text) == 30 for text in texts.values())
    assert engine.counts.accepted > 50
    assert watched.count.folded >= 4
    assert watched.count.wide and watched.count.shared
    assert reused > 200
    plain.close()
    drafted.close()


class EveryOtherPass(OracleSession):
    """Drafts that are all wrong in every second pass, beginning with the pass number `first`, else none.

    `places` are those of a chunk at which a pass's first row stood, and whether it had drafts.
    """

    def __init__(self, whole: Sequence[int], known: int, first: int, chunk: int) -> None:
        super().__init__(whole, known)
        self.first, self.chunk = first, chunk
        self.places: set[tuple[int, bool]] = set()

    def propose(self, budget: int) -> Draft:
        drafts = len(self.outcomes) % 2 == self.first
        self.places.add(((self.known - 1) % self.chunk, drafts))
        wrong = tuple(token ^ 1 for token in self.whole[self.known : self.known + budget])
        return Draft(wrong, (0.9,) * len(wrong), "wrong") if drafts else Draft()


def _given(session: OracleSession, tenant: str, prompt: Sequence[int]) -> OracleSession:
    return session


@pytest.mark.slow
@pytest.mark.parametrize("case", [*MODELS, "mamba2 torch", "qwen35 torch", "qwen35 mlx", "lfm2 openvino"])
def test_passes_without_drafts_follow_rejected_ones_at_every_place_of_a_chunk(
    case: str, once: Once, tmp_path: Path
) -> None:
    """And the reverse: an engine that keeps a state per token shows another text here."""
    model, backend = case.split()
    artifact = artifact_of(once, tmp_path, model)
    request = Request(PROMPT[:20], 140)
    plain, drafted = open_verifier(artifact, backend, 1), open_verifier(artifact, backend, 1)
    text = plain_text(plain, request)
    chunk, places = artifact.manifest.chunk or 32, set[tuple[int, bool]]()
    for first in (0, 1):
        session = EveryOtherPass([*request.prompt, *text], len(request.prompt), first, chunk)
        source = SourceOf(partial(_given, session))
        engine = Engine(drafted, Proven(speculate=True, widths=(4,), reuse_prefixes=False), source)
        assert [token.id for event in engine.generate(request) for token in event.tokens] == text
        assert (engine.counts.accepted, session.faults) == (0, [])
        places |= session.places
    # A run ends with its chunk, so nothing can be drafted behind its last place.
    assert places >= {(place, drafts) for place in range(chunk - 1) for drafts in (False, True)}
    plain.close()
    drafted.close()


@pytest.mark.slow
def test_a_saved_prompt_goes_on_in_another_process(once: Once, tmp_path: Path) -> None:
    """From a file, on a verifier of its own, within a chunk and at its end."""
    artifact = artifact_of(once, tmp_path, "granitehybrid")
    here = circumstances(artifact, "openvino", 1)
    verifier, other = open_verifier(artifact, "openvino", 1), open_verifier(artifact, "openvino", 1)
    proven = replace(Proven.nothing(verifier.shape), reuse_prefixes=True)
    for count in (20, 64, 100):
        request = Request(PROMPT[:count], 30)
        text = plain_text(verifier, request)
        engine = Engine(verifier, proven)
        assert [*engine.generate(Request(PROMPT[:count], 1))]
        saved = engine.save_prefix(PROMPT[:count])
        assert saved is not None and len(saved.carried) == 4
        write_prefix(tmp_path / "prompt.kv", saved, here)
        later = Engine(other, proven)
        again = read_prefix(tmp_path / "prompt.kv", here, artifact.manifest.state_bytes)
        assert later.restore_prefix(again)
        events = [*later.generate(Request((*PROMPT[:count], text[0]), 29))]
        assert [token.id for event in events for token in event.tokens] == text[1:]
        assert events[-1].statistics.reused_tokens == count
    verifier.close()
    other.close()
