"""In-place writes are probed, and where they fail the copying form gives the same bits."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from graphs import SLOTS, D, layers, reloaded

from anespec.manifests.schema import AttentionShape
from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.openvino_cpu import model
from anespec.runtime.backends.portable.openvino_cpu import runner as openvino_runner
from anespec.runtime.backends.portable.openvino_cpu.library import (
    Output,
    Value,
    constant,
    opset15,
    out,
    planar,
)
from anespec.runtime.backends.portable.openvino_cpu.model import BuiltModel, build_model
from anespec.runtime.backends.portable.openvino_cpu.products import Settings
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.portable.openvino_cpu.states import States
from anespec.runtime.backends.portable.openvino_cpu.table import slot_write
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.spans import SlotAxes
from anespec.runtime.backends.runner import Tensor


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return reloaded(layers(AttentionShape.GROUPED, range(2)), tmp_path_factory.mktemp("openvino"))


def played(runner: OpenVINORunner) -> list[Tensor]:
    """Outputs of three passes of four rows, the last half empty, and the states after them."""
    rng = np.random.default_rng(5)
    found = []
    for number, count in enumerate((4, 4, 2)):
        write = np.zeros((1, 1, SLOTS, 4), np.float16)
        attend = np.full((1, 1, 4, SLOTS), np.float16(-1e4))
        for lane in range(count):
            write[0, 0, 4 * number + lane, lane] = 1
            attend[0, 0, lane, : 4 * number + lane + 1] = 0
        attend[0, 0, count:, 0] = 0
        feed = {
            "x": rng.normal(size=(1, D, 4, 1)).astype(np.float16),
            "rope_cos": np.ones((4, 2), np.float16),
            "rope_sin": np.zeros((4, 2), np.float16),
            "attn_mask": attend,
            "kv_write_mask": write,
        }
        found.append(runner.run(feed)["hidden"])
    return [*found, *(runner.read_state(name) for name in runner.program.states)]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all((a.view(np.uint16) == b.view(np.uint16)).all() for a, b in zip(found, expected, strict=True))


def test_the_probe_finds_writes_in_place_and_leaves_no_trace(program: Program) -> None:
    runner = OpenVINORunner(program, 1)
    assert not any(runner.read_state(name).any() for name in program.states)
    assert runner._writes_in_place()
    assert not any(runner.read_state(name).any() for name in program.states)


def test_the_copying_form_gives_the_same_bits(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = played(OpenVINORunner(program, 1))
    monkeypatch.setattr(OpenVINORunner, "_writes_in_place", lambda _: False)
    assert_same(played(OpenVINORunner(program, 1)), expected)


def recorded_builds(monkeypatch: pytest.MonkeyPatch, *, copied: bool = False) -> list[bool]:
    """Which forms are built; with `copied`, the one in place scatters into a copy of what it reads."""
    built: list[bool] = []

    def build(
        program: Program, axes: SlotAxes, in_place: bool, stretching: Collection[str], settings: Settings
    ) -> BuiltModel:
        built.append(in_place)
        with monkeypatch.context() as patched:
            if copied and in_place:
                patched.setattr(model, "slot_write", into_a_copy)
            return build_model(program, axes, in_place, stretching, settings)

    monkeypatch.setattr(openvino_runner, "build_model", build)
    return built


def into_a_copy(a: Arguments[Value], slots: Output, lanes: Output) -> Value:
    """A write whose result is another value than the state, as the graph's own blend makes it."""
    copy = out(opset15.maximum(planar(a.value("state")), constant(-65504.0, np.float32)))
    known = {**a.known, a.operation.inputs["state"][0]: copy}
    return slot_write(replace(a, known=known), slots, lanes)


def test_writes_that_are_lost_lead_to_the_copying_form(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a scatter goes into a new value, assigning the old one loses the write."""
    expected = played(OpenVINORunner(program, 1))
    built = recorded_builds(monkeypatch, copied=True)
    runner = OpenVINORunner(program, 1)
    assert built == [True, False]
    assert not any(runner.read_state(name).any() for name in program.states)
    assert_same(played(runner), expected)


def test_writes_that_stray_lead_to_the_copying_form(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = played(OpenVINORunner(program, 1))
    built = recorded_builds(monkeypatch)
    read = States.read

    def strayed(self: States, name: str, first: int, count: int) -> Tensor:
        state = read(self, name, first, count)
        if len(built) == 1:
            state[:, :, 17] = 3
        return state

    with monkeypatch.context() as patched:
        patched.setattr(States, "read", strayed)
        runner = OpenVINORunner(program, 1)
    assert built == [True, False]
    assert_same(played(runner), expected)


def test_one_build_is_enough_where_the_probe_passes(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = recorded_builds(monkeypatch)
    OpenVINORunner(program, 1)
    assert built == [True]
