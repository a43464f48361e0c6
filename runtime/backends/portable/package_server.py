"""Run predictions of packages for another process, over standard input and output or over a Unix socket.

`swift/Sources/StandIn`, the stand-in for Core ML's classes, sends its predictions here. The server is
stateless: states come with a question and return with its answer, so it can serve workers that die.

Questions and answers have the same format: two little-endian u64, the numbers of bytes of a JSON object and
of the tensors after it; then both. Tensors are contiguous, in the order in which the object lists them. They
are fp16, except an input whose "dtype" is "int32".

    {"op": "open", "path", "function"} -> {"model", "inputs", "outputs", "states"}
    {"op": "predict", "model", "inputs": [{"name", "shape", "dtype"}], "states": [{"name", "shape"}]}
        -> {"outputs": [{"name", "shape"}]}, the tensors of outputs, then of states
    any question that fails -> {"error": text}
"""

import json
import os
import socketserver
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from anespec.gguf.element_types import ElementType
from anespec.runtime.backends.portable.mil_package import read_package
from anespec.runtime.backends.portable.program import Program, load_program
from anespec.runtime.backends.runner import Homes, Inputs, ShardRunner, Tensor
from anespec.system.errors import AnespecError, ArtifactError, RequestError
from anespec.system.formatting import quoted, shape_text

COMPILED = ".mlmodelc"
PACKAGE_OF_COMPILED = "package"
"""The file in a stand-in's "compiled model" that holds the path of the package."""

Library = Literal["torch", "openvino"]


def followed(path: Path) -> Path:
    """Return the package to which a stand-in's "compiled model" refers, or `path` itself if it is a package.

    Raises:
        ArtifactError: the "compiled model" cannot be read.
    """
    if path.suffix != COMPILED:
        return path
    try:
        return Path((path / PACKAGE_OF_COMPILED).read_text("utf-8").strip())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: is not a readable compiled model ({error}); compile it again") from None


class PredictorState:
    """The states of one sequence of predictions: fp16 arrays by name, zeros at first.

    After a prediction the values stay in the predictor's runner and are read from there when needed.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make states of zeros."""
        self._arrays: dict[str, Tensor] = {
            name: np.zeros(shape, np.float16) for name, shape in shapes.items()
        }
        self._runner: ShardRunner | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the states, by name."""
        return {name: array.shape for name, array in self._arrays.items()}

    def read(self, name: str) -> Tensor:
        """Return a copy of a state; raise RequestError if there is none of this name."""
        self._require(name)
        return self._arrays[name].copy() if self._runner is None else self._runner.read_state(name)

    def write(self, name: str, value: NDArray[np.float16]) -> None:
        """Replace a state; raise RequestError if there is none of this name and shape."""
        self._require(name)
        if value.shape != self._arrays[name].shape:
            raise RequestError(
                f"the state {quoted(name)} is of shape {shape_text(self._arrays[name].shape)}, "
                f"not {shape_text(value.shape)}"
            )
        if self._runner is None:
            self._arrays[name][...] = value
        else:
            self._runner.write_state(name, value)

    def move_to(self, runner: ShardRunner | None) -> None:
        """Move the values to a runner, which holds them from now on; None copies them back."""
        if runner is self._runner:
            return
        if self._runner is not None:
            self._arrays = {name: self._runner.read_state(name) for name in self._arrays}
        if runner is not None:
            for name, array in self._arrays.items():
                runner.write_state(name, array)
        self._runner = runner

    def _require(self, name: str) -> None:
        if name not in self._arrays:
            raise RequestError(f"there is no state {quoted(name)}")


class PackagePredictor:
    """A function of a package, executed by a portable library. The caller keeps the states, as in Core ML."""

    def __init__(
        self, package: Path, function: str | None = None, library: Library = "torch", threads: int = 1
    ) -> None:
        """Open a function of an .mlpackage, or of the package to which a stand-in .mlmodelc refers.

        A `function` of None is the package's default.

        Raises:
            ArtifactError: a file is missing or damaged, the package lacks the function, or the library
                refuses it.
        """
        package = followed(package)
        read = read_package(package)
        self.functions = tuple(read.functions)
        self._program = load_program(package, function)
        self._runner = _runner(library)(self._program, threads)
        self._held: PredictorState | None = None

    @property
    def inputs(self) -> Mapping[str, tuple[int | None, ...]]:
        """The shapes of the inputs, by name; a dimension of None is T."""
        return self._program.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in the program's order."""
        return self._program.outputs

    @property
    def states(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the states, by name."""
        return self._program.states

    def make_state(self) -> PredictorState:
        """Return states of zeros, for every function of the package that has the same states."""
        return PredictorState(self.states)

    def predict(self, inputs: Inputs, state: PredictorState | None = None) -> dict[str, Tensor]:
        """Run the function and return copies of all outputs, fp16; `state` is changed.

        Raises:
            RequestError: an input or a state is missing, unknown, or of another shape or type.
            ArtifactError: the library fails.
        """
        self._require_inputs(inputs)
        given = {} if state is None else state.shapes
        if given != dict(self.states):
            raise RequestError(f"the states {quoted(', '.join(given))} are not those of the function")
        if state is not self._held:
            if self._held is not None:
                self._held.move_to(None)
            self._held = state
        if state is not None:
            state.move_to(self._runner)
        return {name: np.asarray(value) for name, value in self._runner.run(inputs).items()}

    def _require_inputs(self, inputs: Inputs) -> None:
        if strange := sorted(inputs.keys() ^ self.inputs.keys()):
            raise RequestError(f"the input {quoted(strange[0])} is missing, or the function does not take it")
        widths: set[int] = set()
        for name, shape in self.inputs.items():
            found = inputs[name].shape
            fits = len(found) == len(shape) and all(
                size is None or size == got for size, got in zip(shape, found, strict=True)
            )
            if not fits:
                raise RequestError(
                    f"the input {quoted(name)} is of shape {shape_text(found)}, not {shape_text(shape)}"
                )
            integral = self._program.interface[name].element is ElementType.INT32
            if integral is not (inputs[name].dtype.kind == "i"):
                kind = "int32" if integral else "fp16"
                raise RequestError(f"the input {quoted(name)} is {inputs[name].dtype}, not {kind}")
            widths |= {got for size, got in zip(shape, found, strict=True) if size is None}
        if len(widths) > 1:
            raise RequestError(f"the inputs have different numbers of rows: {sorted(widths)}")


def _runner(library: Library) -> Callable[[Program, int], ShardRunner]:
    """Import a library and return its runner; to import one takes seconds."""
    if library == "torch":
        from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner

        return TorchRunner
    from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner

    return OpenVINORunner


LIBRARY_VARIABLE = "ANESPEC_STANDIN_LIBRARY"
"""The environment variable that chooses the library: torch (the default) or openvino."""

HEADER = struct.Struct("<QQ")


@dataclass
class Packages:
    """Opened functions by their handle. A function is opened once; predictions run one at a time."""

    library: Library = "torch"
    _opened: list[PackagePredictor] = field(default_factory=list)
    _handles: dict[tuple[str, str | None], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, question: Mapping[str, Any], tensors: bytes) -> tuple[dict[str, Any], list[Tensor]]:
        """Return the answer to one question, with its tensors; an error becomes an answer with its text."""
        try:
            with self._lock:
                if question["op"] == "open":
                    return self._open(question["path"], question["function"]), []
                return self._predict(question, tensors)
        except (AnespecError, ValueError) as error:  # ValueError: an invalid write mask
            return {"error": str(error)}, []

    def _open(self, path: str, function: str | None) -> dict[str, Any]:
        key = (path, function)
        if key not in self._handles:
            self._opened.append(PackagePredictor(Path(path), function, self.library))
            self._handles[key] = len(self._opened) - 1
        handle = self._handles[key]
        model = self._opened[handle]
        return {
            "model": handle,
            "inputs": dict(model.inputs),
            "outputs": list(model.outputs),
            "states": dict(model.states),
        }

    def _predict(self, question: Mapping[str, Any], tensors: bytes) -> tuple[dict[str, Any], list[Tensor]]:
        model = self._opened[question["model"]]
        given = list(_tensors([*question["inputs"], *question["states"]], tensors))
        inputs, states = given[: len(question["inputs"])], given[len(question["inputs"]) :]
        state = model.make_state() if states else None
        for name, value in states:
            assert state is not None
            state.write(name, value)
        made = model.predict(dict(inputs), state)
        changed = [state.read(name) for name, _ in states] if state is not None else []
        outputs = [{"name": name, "shape": value.shape} for name, value in made.items()]
        return {"outputs": outputs}, [*made.values(), *changed]


def serve(packages: Packages, questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer the questions of one process until it closes its end."""
    while header := questions.read(HEADER.size):
        if len(header) < HEADER.size:
            return
        text, tensors = (questions.read(count) for count in HEADER.unpack(header))
        answer, made = packages.answer(json.loads(text), tensors)
        encoded = json.dumps(answer).encode()
        parts = [np.ascontiguousarray(value, np.float16).tobytes() for value in made]
        answers.write(HEADER.pack(len(encoded), sum(map(len, parts))) + encoded)
        answers.writelines(parts)
        answers.flush()


def listen(packages: Packages, path: Path) -> None:
    """Answer every process that connects to a Unix socket, until this process is ended."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            serve(packages, cast(BinaryIO, self.rfile), cast(BinaryIO, self.wfile))

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    with Server(str(path), Handler) as server:
        server.serve_forever()


def _tensors(listed: Sequence[Mapping[str, Any]], tensors: bytes) -> Iterator[tuple[str, Tensor | Homes]]:
    at = 0
    for tensor in listed:
        count = prod(tensor["shape"])
        kind = np.dtype(np.int32 if tensor.get("dtype") == "int32" else np.float16)
        if (end := at + count * kind.itemsize) > len(tensors):
            raise RequestError("the question has fewer bytes than its tensors need")
        values = np.frombuffer(tensors, kind, count, at).copy()
        yield tensor["name"], values.reshape(tensor["shape"])
        at = end


def _main() -> None:
    packages = Packages(cast(Library, os.environ.get(LIBRARY_VARIABLE, "torch")))
    if sys.argv[1:2] == ["--listen"]:
        listen(packages, Path(sys.argv[2]))
    else:
        serve(packages, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    _main()
