"""A package server whose only model is a head that returns what a test put there."""

import json
import socketserver
import struct
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HEADER = struct.Struct("<QQ")


class LogitsServer:
    """Listens on a Unix socket; `rows` [T, V] as bits come back as slices [1, V_j, T, 1]."""

    def __init__(self, path: Path, cuts: tuple[int, ...]) -> None:
        self.path = path
        self.edges = cuts
        self.rows: NDArray[np.uint16] = np.zeros((1, cuts[-1]), np.uint16)
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while header := self.rfile.read(HEADER.size):
                    text, _ = (self.rfile.read(count) for count in HEADER.unpack(header))
                    answer, tensors = server.answer(json.loads(text)["op"])
                    encoded = json.dumps(answer).encode()
                    self.wfile.write(HEADER.pack(len(encoded), len(tensors)) + encoded + tensors)

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        self._server = Server(str(path), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def outputs(self) -> list[str]:
        """Names, one per slice."""
        return [f"logits_{index}" for index in range(len(self.edges) - 1)]

    def answer(self, op: str) -> tuple[dict[str, object], bytes]:
        """The answer to one question."""
        if op == "open":
            return {"model": 0, "inputs": {"x": [1, 1, None, 1]}, "outputs": self.outputs, "states": {}}, b""
        slices = [self.rows.T[a:b] for a, b in zip(self.edges, self.edges[1:], strict=False)]
        listed = [
            {"name": name, "shape": [1, len(piece), len(self.rows), 1]}
            for name, piece in zip(self.outputs, slices, strict=True)
        ]
        return {"outputs": listed}, b"".join(np.ascontiguousarray(piece).tobytes() for piece in slices)

    def close(self) -> None:
        """Take no more connections."""
        self._server.shutdown()
        self._server.server_close()
