"""How many processes a conversion takes: by its work, by the processors and by the memory."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from tiny_model import TinyModel, add_value, write_gguf

from anespec.convert import worker_count
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.convert.worker_count import suitable_workers
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.weight_choice import WeightChoice

LAYERS, D, FF = 8, 2048, 6144
WEIGHTS = LAYERS * (4 * D * D + 3 * D * FF)
"""0.44 * 10^9."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF of a large model's shapes whose data is a hole."""
    path = tmp_path_factory.mktemp("hollow") / "large.gguf"
    model = TinyModel(d=D, heads=16, kv_heads=16, head_dim=128, ff=FF, layers=LAYERS)
    tiny = write_gguf(path.with_name("tiny.gguf"), TinyModel(layers=LAYERS))
    shapes = {"attn_output": (D, D), "ffn_gate": (FF, D), "ffn_up": (FF, D), "ffn_down": (D, FF)}
    shapes |= {f"attn_{role}": (D, D) for role in "qkv"}
    writer, size = GGUFWriter(path, "llama"), 0
    for key, value in model.metadata().items():
        add_value(writer, key, value)
    with GGUFFile(tiny) as file:
        for info in file:
            shape = shapes.get(info.name.split(".")[-2], (*info.shape[:-1], D))
            dtype = np.dtype(np.float16 if len(shape) > 1 else np.float32)
            nbytes = int(np.prod(shape)) * dtype.itemsize
            writer.add_tensor_info(info.name, shape, dtype, nbytes)
            size += nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as hollow:
        hollow.truncate(-(-path.stat().st_size // 32) * 32 + size)
    return path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Two processors and 22 GB free, unless a test changes that."""
    monkeypatch.setattr(worker_count, "processors", lambda: 2)
    monkeypatch.setattr(worker_count, "free_memory", lambda: 22 * 10**9)
    return monkeypatch


def options_for(weights: WeightFormat, **options: object) -> ConvertOptions:
    return ConvertOptions(weights=WeightChoice(weights), target=Target.CPU, **options)


def workers(gguf: Path, weights: WeightFormat, **options: object) -> int:
    """What is chosen for a file and a weight format."""
    with GGUFFile(gguf) as file:
        return suitable_workers(ConversionPlan(SourceModel(file), options_for(weights, **options)))


@pytest.mark.parametrize("weights", [WeightFormat.LUT6, WeightFormat.LUT4, WeightFormat.INT4_BLOCK32])
def test_slow_formats_take_every_processor_however_few_their_bytes(
    large: Path, machine: pytest.MonkeyPatch, weights: WeightFormat
) -> None:
    """Bytes once decided: 0.3 GB of lut6 took one process, and twice the time."""
    assert workers(large, weights, topology=(2,) * 4) == 2
    machine.setattr(worker_count, "processors", lambda: 4)
    assert workers(large, weights, topology=(2,) * 4) == 4


def test_work_decides(large: Path, machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.setattr(worker_count, "processors", lambda: 64)
    tiny = write_gguf(tmp_path / "tiny.gguf", TinyModel())
    for weights in WeightFormat:
        with GGUFFile(large) as file:
            plan = ConversionPlan(SourceModel(file), options_for(weights))
            seconds = worker_count.storing_seconds(plan)
        assert seconds == pytest.approx(
            worker_count.SECONDS_PER_GIGAWEIGHT[weights] * WEIGHTS / 1e9, rel=0.01
        )
        assert workers(tiny, weights, topology=(1, 1)) == 1
    assert workers(large, WeightFormat.INT8_CHANNEL, topology=(1,) * 8) == 1
    assert workers(large, WeightFormat.FP16, topology=(1,) * 8) == 1
    assert workers(large, WeightFormat.INT8_BLOCK32, topology=(1,) * 8) == 2


def test_no_more_processes_than_parts_or_memory_allows(large: Path, machine: pytest.MonkeyPatch) -> None:
    machine.setattr(worker_count, "processors", lambda: 64)
    machine.setattr(worker_count, "MIN_WORKER_SECONDS", 1.0)
    assert workers(large, WeightFormat.LUT6, topology=(8,)) == 2
    assert workers(large, WeightFormat.LUT6, topology=(1,) * 8) == 9
    machine.setattr(worker_count, "free_memory", lambda: 600_000_000)
    assert workers(large, WeightFormat.LUT6, topology=(1,) * 8) <= 2
    machine.setattr(worker_count, "free_memory", lambda: 0)
    assert workers(large, WeightFormat.LUT6, topology=(1,) * 8) == 1
