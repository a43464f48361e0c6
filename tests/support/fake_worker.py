"""A worker in Python, for tests of its host: the protocol of docs/worker.md over the portable backend.

    python -P fake_worker.py serve --socket FD --arena FD

FAKE_WORKER names a JSON file that says where it misbehaves: {"op": "pass", "count": 3, "how": "die"} for the
third pass that any process sees, with `how` one of die, hang, nonsense, and `done` set once it has happened.
"""

import json
import math
import mmap
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

HEADER = struct.Struct("<8sIIQ32sQII")
ENTRY = struct.Struct("<64sQQ")


def framed(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes; the process ends where the host is gone."""
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            os._exit(0)
        found += more
    return found


def misbehave(operation: str) -> str | None:
    """What is to go wrong with this message, if anything."""
    plan = os.environ.get("FAKE_WORKER")
    if plan is None:
        return None
    path = Path(plan)
    told = json.loads(path.read_text())
    if told.get("done") or told["op"] != operation:
        return None
    told["count"] -= 1
    told["done"] = told["count"] <= 0 and not told.get("again")
    path.write_text(json.dumps(told))
    return str(told["how"]) if told["count"] <= 0 else None


def serve(connection: socket.socket, worker: Any) -> None:
    """Answer until the host is gone."""
    while True:
        message = json.loads(framed(connection, *struct.unpack("<I", framed(connection, 4))))
        match misbehave(message["op"]):
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
            case "nonsense":
                connection.sendall(b"\xff\xff\xff\xff")
            case "refuse":
                error = {"kind": "predict", "domain": "d", "code": -14, "text": "no", "stage": "s"}
                answer(connection, {"id": message["id"], "ok": False, "error": error})
                continue
        reply = getattr(worker, message["op"])(message)
        answer(connection, {"id": message["id"], "ok": True, **(reply or {})})
        if message["op"] == "stop":
            os._exit(0)


def answer(connection: socket.socket, reply: dict[str, Any]) -> None:
    content = json.dumps(reply).encode()
    connection.sendall(struct.pack("<I", len(content)) + content)


class FakeWorker:
    """Stages over PackagePredictor; everything else as the protocol says."""

    def __init__(self, arena: int) -> None:
        self.memory = mmap.mmap(arena, 0)
        magic, protocol, header, size, _, table, count, entry = HEADER.unpack_from(self.memory, 0)
        assert (magic, protocol, header, size) == (b"ANESPECA", 1, 4096, len(self.memory))
        assert entry == ENTRY.size
        self.table = {}
        for index in range(count):
            name, offset, length = ENTRY.unpack_from(self.memory, table + index * entry)
            assert offset % 16384 == 0 and offset + length <= size
            self.table[name.rstrip(b"\0").decode()] = (offset, length)
        self.passes = 0

    def part(self, buffer: str, shape: list[int | None], rows: int) -> tuple[int, int]:
        """Offset and bytes of a tensor."""
        name = f"{buffer}@{rows}" if None in shape else buffer
        offset, length = self.table[name]
        assert length == 2 * math.prod(rows if size is None else size for size in shape), name
        return offset, length

    def tensor(self, buffer: str, shape: list[int | None], rows: int) -> Any:
        import numpy as np

        offset, length = self.part(buffer, shape, rows)
        sizes = [rows if size is None else size for size in shape]
        return np.frombuffer(self.memory, np.float16, length // 2, offset).reshape(sizes)

    def load(self, message: dict[str, Any]) -> dict[str, Any]:
        from anespec.runtime.backends.portable.package_predictor import PackagePredictor

        self.vocabulary = message["vocabulary"]
        self.stages = message["stages"]
        self.predictors = [PackagePredictor(Path(stage["path"])) for stage in self.stages]
        self.reset(message)
        return {"seconds": 0.0, "stages": [{"seconds": 0.0} for _ in self.stages]}

    def reset(self, message: dict[str, Any]) -> None:
        self.states = [predictor.make_state() for predictor in self.predictors]

    def run(self, message: dict[str, Any]) -> None:
        self.predict(message["stage"], message["rows"])

    def predict(self, index: int, rows: int) -> None:
        stage = self.stages[index]
        inputs = {i["name"]: self.tensor(i["buffer"], i["shape"], rows) for i in stage["inputs"]}
        state = self.states[index] if stage["states"] else None
        outputs = self.predictors[index].predict(inputs, state)
        for port in stage["outputs"]:
            self.tensor(port["buffer"], port["shape"], rows)[...] = outputs[port["name"]]

    def pass_(self, message: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        from anespec.runtime.passes import Need
        from anespec.runtime.row_logits import row_logits

        rows, head = message["rows"], message["head"]
        for index, stage in enumerate(self.stages):
            if stage["kind"] == "layers":
                self.predict(index, rows)
        found: list[tuple[int, Any]] = []
        for index, stage in enumerate(self.stages):
            if stage["kind"] != "head" or head is None:
                continue
            for port in stage["inputs"] if head["lanes"] != list(range(rows)) else ():
                hidden = self.tensor(port["buffer"], port["shape"], rows)
                self.tensor(port["buffer"], port["shape"], head["rows"])[...] = hidden[:, :, head["lanes"]]
            self.predict(index, head["rows"])
            first = stage["first_token"]
            for port in stage["outputs"]:
                logits = self.tensor(port["buffer"], port["shape"], head["rows"])
                found.append((first, logits))
                first += logits.shape[1]
        answers = []
        for wanted in message["wanted"] if found else ():
            lane = head["lanes"].index(wanted["lane"])
            row = [logits[0, :, lane, 0] for _, logits in found]
            begin, end = found[0][0], found[-1][0] + len(row[-1])
            assert sum(map(len, row)) == end - begin
            need = Need(best=wanted["best"], top=wanted["top"])
            reduced = row_logits(row, need)
            joined = np.concatenate(row)
            if wanted["logits"] is not None:
                _, length = self.table["logits"]
                place = self.tensor("logits", [length // 2 // self.vocabulary, self.vocabulary], 0)
                place[wanted["logits"], begin:end] = joined
            bits = joined.view(np.uint16)

            def pair(candidate: Any, begin: int = begin, bits: Any = bits) -> list[int]:
                return [begin + candidate.token, int(bits[candidate.token])]

            answers.append(
                {
                    "lane": wanted["lane"],
                    "best": None if reduced.best is None else pair(reduced.best),
                    "top": [pair(candidate) for candidate in reduced.top],
                    "chosen": [
                        int(bits[token - begin]) if begin <= token < end else None
                        for token in wanted["chosen"]
                    ],
                }
            )
        self.passes += 1
        return {"milliseconds": 0.0, "stages": [], "rows": answers}

    def pool_states(self, pool: int) -> list[tuple[int, str]]:
        return [
            (index, state["name"])
            for index, stage in enumerate(self.stages)
            for state in stage["states"]
            if state["pool"] == pool
        ]

    def copy_slots(self, message: dict[str, Any]) -> None:
        source, target, count = message["source"], message["target"], message["count"]
        for index, name in self.pool_states(message["pool"]):
            values = self.states[index].read(name)
            values[:, :, target : target + count] = values[:, :, source : source + count].copy()
            self.states[index].write(name, values)

    def export(self, message: dict[str, Any]) -> dict[str, Any]:
        offset, length = self.table["slots"]
        first = message["first"]
        content = b"".join(
            self.states[index].read(name)[:, :, first : first + message["count"]].tobytes()
            for index, name in self.pool_states(message["pool"])
        )
        assert len(content) <= length
        self.memory[offset : offset + len(content)] = content
        return {"bytes": len(content)}

    def import_(self, message: dict[str, Any]) -> None:
        import numpy as np

        offset, _ = self.table["slots"]
        for index, name in self.pool_states(message["pool"]):
            values = self.states[index].read(name)
            piece = values[:, :, message["first"] : message["first"] + message["count"]]
            found = np.frombuffer(self.memory, np.float16, piece.size, offset)
            piece[...] = found.reshape(piece.shape)
            offset += 2 * piece.size
            self.states[index].write(name, values)

    def stats(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"passes": self.passes, "milliseconds": 0.0, "stages": [], "resident_bytes": 0}

    def stop(self, message: dict[str, Any]) -> None:
        pass


# What messages call these operations is not Python's to use as a name.
setattr(FakeWorker, "pass", FakeWorker.pass_)
setattr(FakeWorker, "import", FakeWorker.import_)


def main(kind: type[Any]) -> None:
    _, verb, _, connection, _, arena = sys.argv
    assert verb == "serve"
    serve(socket.socket(fileno=int(connection)), kind(int(arena)))


if __name__ == "__main__":
    main(FakeWorker)
