"""Predictions of packages for another process, over its standard input and output or over a Unix socket.

What `swift/Sources/StandIn` asks where Core ML's classes would compute. Nothing is kept between predictions:
states come with a question and go back with its answer, so one server may serve workers that die.

A question and an answer are alike: two little-endian u64, the bytes of a JSON object and of the tensors
behind it; then both. Tensors are contiguous, in the order that the object lists them, and fp16 but for an
input whose "dtype" is "int32".

    {"op": "open", "path", "function"} -> {"model", "inputs", "outputs", "states"}
    {"op": "predict", "model", "inputs": [{"name", "shape", "dtype"}], "states": [{"name", "shape"}]}
        -> {"outputs": [{"name", "shape"}]}, the tensors of outputs, then of states
    anything that fails -> {"error": text}
"""

import json
import os
import socketserver
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from anespec.runtime.backends.portable.package_predictor import Library, PackagePredictor
from anespec.runtime.backends.runner import Homes, Tensor
from anespec.system.errors import AnespecError, RequestError

LIBRARY_VARIABLE = "ANESPEC_STANDIN_LIBRARY"
"""The environment variable for the library that computes: torch (the default) or openvino."""

HEADER = struct.Struct("<QQ")


@dataclass
class Packages:
    """Opened packages by their handle. One prediction at a time; the same function is opened once."""

    library: Library = "torch"
    _opened: list[PackagePredictor] = field(default_factory=list)
    _handles: dict[tuple[str, str | None], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, question: Mapping[str, Any], tensors: bytes) -> tuple[dict[str, Any], list[Tensor]]:
        """The answer to one question, errors as their text."""
        try:
            with self._lock:
                if question["op"] == "open":
                    return self._open(question["path"], question["function"]), []
                return self._predict(question, tensors)
        except (AnespecError, ValueError) as error:  # a mask that breaks its contract is a ValueError
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
    """Answer one process's questions until it closes its end."""
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
            raise RequestError("there are fewer bytes than the tensors have")
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
