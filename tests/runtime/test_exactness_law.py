"""Why the law of exactness is what it is, on a trained model with torch (DESIGN.md section 5).

One shape and home slots leave a row's bits alone whatever stands beside it or before it; another width
or other slots do not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playing import feed, greedy, in_lane, retoken, rows_for, run, same_bits, states

from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.block import Logits, Row, RowKind

ONE_DAY_TOM = [1, 385, 328, 376, 432, 348]
"""The prompt "One day, Tom" in stories260K's tokens."""


@pytest.fixture(scope="module")
def text(stories_cpu: Path) -> list[int]:
    """60 tokens of greedy text after the prompt, the prompt included."""
    verifier = open_verifier(stories_cpu, "torch", threads=1)
    tokens, _ = greedy(verifier, ONE_DAY_TOM, 60)
    verifier.close()
    return ONE_DAY_TOM + tokens


@pytest.fixture(params=["torch", "openvino"])
def verifier(stories_cpu: Path, request: pytest.FixtureRequest) -> Iterator[ArtifactVerifier]:
    verifier = open_verifier(stories_cpu, request.param, threads=1)
    yield verifier
    verifier.close()


@pytest.fixture
def reference(stories_cpu: Path) -> Iterator[ArtifactVerifier]:
    verifier = open_verifier(stories_cpu, "torch", threads=1)
    yield verifier
    verifier.close()


def one_by_one(verifier: ArtifactVerifier, text: Sequence[int], lane: int = 0) -> Logits:
    """Every token alone in its pass, at the block's width, in one lane."""
    return np.concatenate(
        [
            run(verifier, in_lane(rows_for(verifier, [token], position), lane))[-1:]
            for position, token in enumerate(text)
        ]
    )


def clear(verifier: ArtifactVerifier, value: float = 0) -> None:
    slots = verifier.shape.pools[0].region_slots
    verifier.import_slots(0, 0, [np.full_like(v, value) for v in verifier.export_slots(0, 0, slots)])


def same_states(a: list[np.ndarray], b: list[np.ndarray], slots: int) -> bool:
    return all((x[:, :, :slots] == y[:, :, :slots]).all() for x, y in zip(a, b, strict=True))
