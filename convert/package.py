"""Write one MIL program as an .mlpackage, each weight once, in place.

`ct.convert` and `save` would hold every weight of the shard in memory and copy the weight file twice. So the
program is handed to coremltools' exporter directly, with one change: where a constant is a
placeholder, its values are made, written to the package's own weight file, and dropped.
"""

import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import (
    CoreMLProtoExporter,
    MILProtoExporter,
    Var,
    ct,
    file_value,
)
from anespec.convert.graph.placeholder import Placeholder
from anespec.convert.graph.shards import ShardProgram
from anespec.convert.storage import storage_errors
from anespec.convert.weights.encoding import Element

AUTHOR = "com.apple.CoreML"
MODEL_FILE = f"{AUTHOR}/model.mlmodel"
WEIGHTS_FOLDER = f"{AUTHOR}/weights"
WEIGHTS_FILE = "weight.bin"


def write_package(shard: ShardProgram, path: Path) -> None:
    """Write `shard` to `path` (a folder ending in .mlpackage); nothing stands there on failure.

    The graph is written as it was built: no coremltools pass runs, for the builder already emits the
    operations that are wanted. The same shard gives the same bytes.

    Raises:
        StorageError: the disk is full or refuses.
    """
    partial = path.with_name(f".{path.stem}.partial.mlpackage")
    shutil.rmtree(partial, ignore_errors=True)
    with storage_errors(path):
        try:
            weights = partial / "Data" / WEIGHTS_FOLDER
            weights.mkdir(parents=True)
            (partial / "Data" / MODEL_FILE).write_bytes(_export(shard, weights))
            (partial / "Manifest.json").write_text(_package_manifest(), "utf-8")
            shutil.rmtree(path, ignore_errors=True)
            partial.rename(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _export(shard: ShardProgram, weights: Path) -> bytes:
    """The serialised model; its large constants go to a file in `weights` on the way."""
    function = shard.program.functions["main"]
    function.set_input_types(tuple(shard.inputs))
    function.set_output_types(shard.outputs)
    version = int(ct.target.iOS18)
    exporter = _StreamingExporter(shard.program, str(weights), version)
    described = CoreMLProtoExporter(
        shard.program, exporter.export(), None, None, None, "mlprogram", "milinternal", version
    )
    model = described.export(version)
    # The exporter's blob writer ends the file when it goes.
    del exporter
    serialised: bytes = model.SerializeToString(deterministic=True)
    return serialised


class _StreamingExporter(MILProtoExporter):
    """coremltools' exporter, except that a placeholder's values are made when they are written."""

    def get_milproto_value(self, var: Var) -> Any:
        """A placeholder's values go to the weight file, however few they are."""
        if isinstance(var.val, Placeholder):
            return self._write(var, var.val)
        return super().get_milproto_value(var)

    def _write(self, var: Var, values: Placeholder) -> Any:
        """A reference to the place in the weight file where the values of `var` stand."""
        writer = self.get_blob_writer(self.get_weight_path(var.op))
        offset = _writers(writer)[values.element](values.load().reshape(-1))
        return file_value(var, offset, f"@model_path/weights/{WEIGHTS_FILE}")


def _writers(writer: Any) -> Mapping[Element, Callable[[NDArray[Any]], int]]:
    """How each type of values goes into the file, packed by the writer where they are less than a byte.

    fp16 is handed over as its bits. Returns offsets.
    """
    return {
        Element.INT4: writer.write_int4_data,
        Element.UINT4: writer.write_uint4_data,
        Element.UINT6: writer.write_uint6_data,
        Element.INT8: writer.write_int8_data,
        Element.FP16: lambda values: writer.write_fp16_data(values.view(np.uint16)),
        Element.FP32: writer.write_float_data,
    }


def _package_manifest() -> str:
    """Manifest.json of a package, as Core ML's own writer lays it out; identifiers do not vary."""
    items = {
        str(uuid.uuid5(uuid.NAMESPACE_URL, path)).upper(): {
            "author": AUTHOR,
            "description": description,
            "name": path.rpartition("/")[2],
            "path": path,
        }
        for path, description in (
            (MODEL_FILE, "CoreML Model Specification"),
            (WEIGHTS_FOLDER, "CoreML Model Weights"),
        )
    }
    root = next(iter(items))
    return json.dumps(
        {"fileFormatVersion": "1.0.0", "itemInfoEntries": items, "rootModelIdentifier": root}, indent=4
    )
