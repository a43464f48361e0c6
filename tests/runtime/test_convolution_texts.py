"""Texts of a model with short convolutions: neither drafts nor reused prefixes nor neighbours change them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from converting import build
from drafting import OracleSession, SourceOf
from family_files import FAMILIES
from slow import slow_but

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.proven import Proven

PROMPT = [(7 * i) % 11 + 3 for i in range(60)]
LENGTHS = (40, 41, 42, 43, 38, 39)
"""Of prompts that begin alike: a prefix is reused up to each place of a convolution of 3 taps."""


@pytest.mark.fast_only("openvino")
@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "torch", "openvino"))
def test_drafts_and_reused_prefixes_leave_texts_the_same(backend: str, tmp_path: Path) -> None:
    options = {
        "target": Target.CPU,
        "context": 192,
        "sequences": 2,
        "weights": WeightChoice(WeightFormat.FP16),
    }
    artifact = Artifact(build(FAMILIES / "lfm2.gguf", tmp_path / "m.anespec", **options).path)
    requests = [Request(PROMPT[:count], 24) for count in LENGTHS]
    plain, drafted = open_verifier(artifact, backend, 1), open_verifier(artifact, backend, 1)
    expected = []
    for request in requests:
        engine = Engine(plain, replace(Proven.nothing(plain.shape), widths=(4,)))
        expected.append([token.id for event in engine.generate(request) for token in event.tokens])
    texts = {tuple(request.prompt): text for request, text in zip(requests, expected, strict=True)}

    def session(tenant: str, prompt: Sequence[int]) -> OracleSession:
        return OracleSession([*prompt, *texts[tuple(prompt)]], len(prompt), wrong_each=4)

    may = {"speculate": True, "reuse_prefixes": True, "region_independent": True}
    proven = replace(Proven.nothing(drafted.shape), widths=(4,), **may)
    engine = Engine(drafted, proven, SourceOf(session))
    numbers = {engine.submit(request): i for i, request in enumerate(requests)}
    found: list[list[int]] = [[] for _ in requests]
    reused = 0
    while engine.busy:
        for event in engine.step():
            found[numbers[event.sequence]] += [token.id for token in event.tokens]
            reused += event.statistics.reused_tokens if event.finish else 0
    assert found == expected
    drafts = [session.outcomes for session in engine._source.sessions]  # type: ignore[union-attr]
    rejected = sum(len(each.proposed.tokens) - each.accepted for outcomes in drafts for each in outcomes)
    assert engine.counts.accepted > 40 and rejected > 10
    assert reused > 60
    plain.close()
    drafted.close()
