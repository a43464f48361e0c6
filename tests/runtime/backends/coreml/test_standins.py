"""The stand-ins are asked as Core ML's own classes are: signatures, and what they accept and return."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from light_core_ml import LightModel, LightState
from standin_core_ml import NativeModel, NativeState, as_multi_array

from anespec.runtime.backends.coreml import library
from anespec.runtime.backends.coreml.library import (
    ComputeUnits,
    LoadedModel,
    ModelState,
    coremltools,
    has_neural_engine,
    unavailable,
)

CLASSES = coremltools().models


def parameters(call: Callable[..., Any]) -> list[tuple[str, bool]]:
    """Names in order, and whether each must be given."""
    signature = inspect.signature(call)
    return [(p.name, p.default is inspect.Parameter.empty) for p in signature.parameters.values()]


@pytest.mark.parametrize(
    ("real", "names"),
    [
        (CLASSES.CompiledMLModel, ("make_state", "predict")),
        (CLASSES.MLModel, ("make_state", "predict")),
        (CLASSES.model.MLState, ("read_state", "write_state")),
    ],
)
def test_protocols_and_stand_ins_have_the_signatures_of_coremltools(
    real: type, names: tuple[str, ...]
) -> None:
    ours: tuple[type, ...] = (LoadedModel, LightModel) if "predict" in names else (ModelState, LightState)
    for name in names:
        for kind in ours:
            assert parameters(getattr(kind, name)) == parameters(getattr(real, name))


def test_a_compiled_model_takes_what_is_passed_to_it() -> None:
    taken = [name for name, _ in parameters(CLASSES.CompiledMLModel.__init__)]
    assert {"path", "compute_units", "function_name", "optimization_hints"} <= set(taken)
    assert [name for name, _ in parameters(coremltools().utils.compile_model)] == [
        "model",
        "destination_path",
    ]
    assert coremltools().ReshapeFrequency.Infrequent.name == "Infrequent"
    for units in ComputeUnits:
        assert coremltools().ComputeUnit[units.name]


def test_the_native_stand_in_is_asked_for_by_coremltools_own_names() -> None:
    """What coremltools calls on its proxies, read in its sources, the stand-in has."""
    model = inspect.getsource(CLASSES.model) + inspect.getsource(CLASSES._compiled_model)
    model += inspect.getsource(CLASSES.utils) + inspect.getsource(CLASSES.compute_plan)
    for name in ("newState", "predict", "compileModel", "get_compute_plan", "get_all_compute_devices"):
        assert name in model + inspect.getsource(CLASSES.compute_device)
        assert hasattr(NativeModel, name)
    assert "self.__proxy__.read_state(name)" in model
    assert "self.__proxy__.write_state(name, value)" in model
    assert parameters(NativeState.write_state) == parameters(CLASSES.model.MLState.write_state)


def test_half_precision_and_read_only_arrays_are_refused_as_pybind11_does() -> None:
    value = np.ones((1, 2), np.float32)
    assert as_multi_array(value).dtype == np.float16
    for refused in (value.astype(np.float16), np.broadcast_to(value, (2, 2))):
        with pytest.raises(RuntimeError, match="not convertible"):
            as_multi_array(refused)


def test_a_mac_without_coremltools_has_no_neural_engine_to_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> None:
        raise ModuleNotFoundError("coremltools")

    monkeypatch.setattr(library, "unavailable", lambda: None)
    monkeypatch.setattr(library, "coremltools", refuses)
    assert not has_neural_engine()


@pytest.mark.parametrize(("system", "release"), [("Linux", ""), ("Darwin", "14.7")])
def test_why_core_ml_cannot_be_asked(monkeypatch: pytest.MonkeyPatch, system: str, release: str) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.mac_ver", lambda: (release, ("", "", ""), "arm64"))
    assert "macOS 15 or later" in str(unavailable())
    assert not has_neural_engine()
