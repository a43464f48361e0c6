"""What torch-flush is for: a graph that passes through subnormal numbers is red, where torch sees nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from converting import build
from old_norm import divided_once
from planted import golden_of

from anespec.convert.graph import norm
from anespec.convert.mixers.attention import graph as attention
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import TORCH, TORCH_FLUSH
from anespec.runtime.backends.portable.torch_cpu.runner import FlushingRunner
from anespec.validate.golden.figures import GoldenVerdict

GEMMA = Path(__file__).resolve().parents[1] / "data" / "families" / "gemma3.gguf"
"""Its hidden states are kept smaller, and its epsilon with them."""


def judged(folder: Path, backend: str) -> GoldenVerdict:
    return golden_of(Artifact(folder), GEMMA, backend, greedy_tokens=2)


@pytest.mark.slow
def test_the_norm_of_before_is_red_where_subnormal_numbers_are_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (attention, norm):
        monkeypatch.setattr(module, "rms_norm", divided_once)
    weights = WeightChoice(WeightFormat.FP16)
    folder = build(GEMMA, tmp_path / "m.anespec", target=Target.CPU, weights=weights, context=192).path
    assert judged(folder, TORCH).failures == ()
    flushed = judged(folder, TORCH_FLUSH)
    assert not flushed.passed
    assert {f.stimulus for f in flushed.shards if f.not_finite} == {"extreme"}


def test_every_subnormal_number_is_zero_and_no_other() -> None:
    every = torch.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.float16))
    settled = FlushingRunner.settled(FlushingRunner.__new__(FlushingRunner), every).numpy()
    numbers = every.numpy()
    subnormal = np.abs(numbers.astype(np.float64)) < 2.0**-14
    assert not settled[subnormal].any()
    assert np.array_equal(settled[~subnormal], numbers[~subnormal], equal_nan=True)
    whole = torch.tensor([1e-30, 1.0])
    assert FlushingRunner.settled(FlushingRunner.__new__(FlushingRunner), whole) is whole
