"""A worker of milliseconds' start, whose stages compute something simple: for tests of what happens when
workers die, again and again. A row's logits depend on all tokens that it sees, and on nothing else.

    python -I -S toy_worker.py serve --socket FD --arena FD

It speaks the protocol of docs/worker.md and imports nothing but the standard library. TOY_WORKER names a JSON
file that says where it misbehaves: {"op": "pass", "count": 3, "how": "die"} for the third pass that any of
several gets, `how` being one of die, hang, nonsense, refuse and spoil; once, or `again` and again.
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
    plan = os.environ.get("TOY_WORKER")
    if plan is None:
        return None
    path = Path(plan)
    told = json.loads(path.read_text())
    if told.get("done") or told["op"] != operation:
        return None
    told["count"] -= 1
    told["done"] = told["count"] <= 0 and not told.get("again")
    # In one step, since others may be reading it.
    fresh = path.with_name(str(os.getpid()))
    fresh.write_text(json.dumps(told))
    fresh.replace(path)
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
            case "refuse" | "spoil" as how:
                code, text = (-14, "no") if how == "refuse" else (None, "status=0x1d")
                stage = "s" if how == "refuse" else worker.stages[0]["path"]
                error = {"kind": "predict", "domain": "d", "code": code, "text": text, "stage": stage}
                answer(connection, {"id": message["id"], "ok": False, "error": error})
                continue
        reply = getattr(worker, message["op"])(message)
        answer(connection, {"id": message["id"], "ok": True, **(reply or {})})
        if message["op"] == "stop":
            os._exit(0)


def answer(connection: socket.socket, reply: dict[str, Any]) -> None:
    content = json.dumps(reply).encode()
    connection.sendall(struct.pack("<I", len(content)) + content)


class ToyWorker:
    """States are bytes by (stage, name), a list of slots each; a slot is its numbers, head after head."""

    def __init__(self, shared: int) -> None:
        self.memory = mmap.mmap(shared, 0)
        magic, protocol, header, size, _, table, count, entry = HEADER.unpack_from(self.memory, 0)
        assert (magic, protocol, header, size) == (b"ANESPECA", 1, 4096, len(self.memory))
        assert entry == ENTRY.size
        self.table = {}
        for index in range(count):
            name, offset, length = ENTRY.unpack_from(self.memory, table + index * entry)
            assert offset % 16384 == 0 and offset + length <= size
            self.table[name.rstrip(b"\0").decode()] = (offset, length)

    def part(self, buffer: str, shape: list[int | None], rows: int) -> tuple[int, int]:
        """Offset and bytes of a tensor."""
        name = f"{buffer}@{rows}" if None in shape else buffer
        offset, length = self.table[name]
        assert length == 2 * math.prod(rows if size is None else size for size in shape), name
        return offset, length

    def numbers(self, buffer: str, shape: list[int | None], rows: int) -> list[float]:
        offset, length = self.part(buffer, shape, rows)
        return list(struct.unpack_from(f"<{length // 2}e", self.memory, offset))

    def write(self, buffer: str, shape: list[int | None], rows: int, numbers: list[float]) -> None:
        offset, length = self.part(buffer, shape, rows)
        struct.pack_into(f"<{length // 2}e", self.memory, offset, *numbers)

    def load(self, message: dict[str, Any]) -> dict[str, Any]:
        self.vocabulary = message["vocabulary"]
        self.stages = message["stages"]
        self.reset(message)
        return {"seconds": 0.0, "stages": []}

    def reset(self, message: dict[str, Any]) -> None:
        self.held = {
            (index, state["name"]): [bytes(2 * state["shape"][1] * state["shape"][3])] * state["shape"][2]
            for index, stage in enumerate(self.stages)
            for state in stage["states"]
        }

    def pass_(self, message: dict[str, Any]) -> dict[str, Any]:
        rows, answers = message["rows"], []
        for index, stage in enumerate(self.stages):
            if stage["kind"] == "layers":
                self.layers(index, stage, rows, message["homes"])
            elif message["head"] is not None:
                answers.append(self.head(stage, rows, message["head"]["lanes"]))
        if not answers:
            return {"milliseconds": 0.0, "stages": [], "rows": []}
        first = next(stage["first_token"] for stage in self.stages if stage["kind"] == "head")
        found = []
        for wanted in message["wanted"]:
            at = message["head"]["lanes"].index(wanted["lane"])
            row = [logit for logits in answers for logit in logits[at]]
            order = sorted(range(len(row)), key=lambda token: -row[token])

            def pair(token: int, row: list[float] = row) -> list[int]:
                return [first + token, bits(row[token])]

            if wanted["logits"] is not None:
                offset, _ = self.table["logits"]
                offset += 2 * (wanted["logits"] * self.vocabulary + first)
                struct.pack_into(f"<{len(row)}e", self.memory, offset, *row)
            chosen = [token - first for token in wanted["chosen"]]
            found.append(
                {
                    "lane": wanted["lane"],
                    "best": pair(order[0]) if wanted["best"] else None,
                    "top": [pair(token) for token in order[: wanted["top"]]],
                    "chosen": [bits(row[token]) if 0 <= token < len(row) else None for token in chosen],
                }
            )
        return {"milliseconds": 0.0, "stages": [], "rows": found}

    def layers(self, index: int, stage: dict[str, Any], rows: int, homes: list[list[int]]) -> None:
        ports = {port["name"]: (port["buffer"], port["shape"]) for port in stage["inputs"]}
        x = self.numbers(*ports["x"], rows)
        mask = self.numbers(*ports["attn_mask"], rows)
        slots = len(mask) // rows
        state = stage["states"][0]
        size = state["shape"][1] * state["shape"][3]
        columns = [x[lane::rows] for lane in range(rows)]
        for name in (state["name"] for state in stage["states"]):
            for lane, home in enumerate(homes[0]):
                if home >= 0:
                    numbers = (columns[lane] * (size // len(columns[lane]) + 1))[:size]
                    self.held[index, name][home] = struct.pack(f"<{size}e", *numbers)
        kept = self.held[index, state["name"]]
        given = [0.0] * len(x)
        for lane, column in enumerate(columns):
            seen = [s for s in range(slots) if mask[lane * slots + s] == 0]
            values = [struct.unpack(f"<{size}e", kept[slot]) for slot in seen]
            for channel, number in enumerate(column):
                past = sum(row[channel % size] * (1 + at % 7) for at, row in enumerate(values)) / len(values)
                given[channel * rows + lane] = math.tanh(number + past)
        self.write(stage["outputs"][0]["buffer"], stage["outputs"][0]["shape"], rows, given)

    def head(self, stage: dict[str, Any], rows: int, lanes: list[int]) -> list[list[float]]:
        (port,) = stage["inputs"]
        hidden = self.numbers(port["buffer"], port["shape"], rows)
        count = sum(output["shape"][1] for output in stage["outputs"])
        tokens = range(stage["first_token"], stage["first_token"] + count)
        return [
            [
                fp16(sum(h * math.cos(7 * token + 3 * c) for c, h in enumerate(hidden[lane::rows])))
                for token in tokens
            ]
            for lane in lanes
        ]

    def copy_slots(self, message: dict[str, Any]) -> None:
        source, target, count = message["source"], message["target"], message["count"]
        for place in self.pool_states(message["pool"]):
            self.held[place][target : target + count] = self.held[place][source : source + count]

    def export(self, message: dict[str, Any]) -> dict[str, Any]:
        offset, _ = self.table["slots"]
        begin = offset
        for place, heads in self.moved(message):
            slots = self.held[place][message["first"] : message["first"] + message["count"]]
            for head in range(heads):
                for slot in slots:
                    width = len(slot) // heads
                    self.memory[offset : offset + width] = slot[head * width : (head + 1) * width]
                    offset += width
        return {"bytes": offset - begin}

    def import_(self, message: dict[str, Any]) -> None:
        offset, _ = self.table["slots"]
        first, count = message["first"], message["count"]
        for place, heads in self.moved(message):
            width = len(self.held[place][0]) // heads
            for at in range(count):
                pieces = (offset + (head * count + at) * width for head in range(heads))
                self.held[place][first + at] = b"".join(self.memory[p : p + width] for p in pieces)
            offset += heads * count * width

    def moved(self, message: dict[str, Any]) -> list[tuple[tuple[int, str], int]]:
        heads = {
            (index, state["name"]): state["shape"][1]
            for index, stage in enumerate(self.stages)
            for state in stage["states"]
        }
        return [(place, heads[place]) for place in self.pool_states(message["pool"])]

    def pool_states(self, pool: int) -> list[tuple[int, str]]:
        return [
            (index, state["name"])
            for index, stage in enumerate(self.stages)
            for state in stage["states"]
            if state["pool"] == pool
        ]

    def stats(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"passes": 0, "milliseconds": 0.0, "stages": [], "resident_bytes": 0}

    def stop(self, message: dict[str, Any]) -> None:
        pass


def fp16(number: float) -> float:
    return float(struct.unpack("<e", struct.pack("<e", number))[0])


def bits(number: float) -> int:
    return int(struct.unpack("<H", struct.pack("<e", number))[0])


# Names of messages that Python has other uses for.
setattr(ToyWorker, "pass", ToyWorker.pass_)
setattr(ToyWorker, "import", ToyWorker.import_)

if __name__ == "__main__":
    _, verb, _, connection, _, shared = sys.argv
    assert verb == "serve"
    serve(socket.socket(fileno=int(connection)), ToyWorker(int(shared)))
