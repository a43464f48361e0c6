"""Send malformed requests: valid ones with changed bytes, and those that schemathesis makes from the API."""

import contextlib
import json
import random
import socket
import time

from faulty_clients import Question, connect, raw_request
from faulty_daemon import Daemon

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
SEEDS = (
    raw_request(Question(1, 2).body()),
    raw_request(Question(2, 2).body(stream=True, logprobs=2)),
    raw_request(CHAT, "/v1/chat/completions"),
    raw_request({"content": "some text"}, "/tokenize"),
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Transfer-Encoding: chunked\r\n\r\nf\r\n{"prompt": "x"}\r\n0\r\n\r\n',
)
TOKENS = (
    *(b"\x00", b"\r\n", b"\n\n", b"\xff\xfe", b"{", b"[" * 500, b'"', b"\\ud800", b"null", b"1e999", b"-1"),
    *(b"99999999999999999999", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 7\r\n", b"HTTP/9.9"),
    *(b"Expect: 100-continue\r\n", b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"Host: evil\r\n"),
)
SECONDS_TO_ANSWER = 20.0


class _OutOfTimeError(Exception):
    """The time for one operation is over."""


def _mutant(source: random.Random) -> bytes:
    found = bytearray(source.choice(SEEDS))
    for _ in range(source.randint(1, 4)):
        place = source.randrange(len(found) + 1)
        match source.randrange(5):
            case 0:
                found[place : place + 1] = bytes([source.randrange(256)])
            case 1:
                del found[place : place + source.randint(1, 30)]
            case 2:
                found[place:place] = source.choice(TOKENS)
            case 3:
                found[place:place] = source.randbytes(source.randint(1, 20))
            case 4:
                found += source.choice(SEEDS)
    return bytes(found)


def send_mutants(daemon: Daemon, count: int, seed: int = 11) -> int:
    """Send `count` mutants; RuntimeError if one gets a 5xx, or its connection hangs."""
    source = random.Random(seed)
    for _ in range(count):
        sent = _mutant(source)
        with connect(daemon) as client:
            client.settimeout(SECONDS_TO_ANSWER)
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                began = time.monotonic()
                answer = client.recv(4096)
                # Endpoints that are not implemented (embeddings, pulling models) return 501 by design.
                if answer.startswith(b"HTTP/1.1 5") and not answer.startswith(b"HTTP/1.1 501"):
                    raise RuntimeError(f"{sent!r} was answered by {answer!r}")
                if time.monotonic() - began > SECONDS_TO_ANSWER - 1:
                    raise RuntimeError(f"{sent!r} was not answered")
    return count


def send_schema_cases(daemon: Daemon, seconds: float) -> int:
    """Send schemathesis' requests for `seconds` and return their number. RuntimeError on a status of 500."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Unsatisfiable
    from hypothesis.reporting import with_reporter

    def send(case: schemathesis.Case) -> None:
        nonlocal sent
        if time.monotonic() > until:
            raise _OutOfTimeError
        answer = case.call(timeout=60)
        sent += 1
        if answer.status_code >= 500 and answer.status_code not in (501, 503):
            shown = json.dumps(case.body, default=str)[:500]
            raise RuntimeError(f"{case.method} {case.path} {shown}: {answer.text[:300]}")

    limits = settings(
        max_examples=400,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    schema = schemathesis.openapi.from_url(f"{daemon.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    sent, end = 0, time.monotonic() + seconds
    for number, operation in enumerate(operations):
        left = end - time.monotonic()
        until = time.monotonic() + left / (len(operations) - number)
        for mode in schemathesis.GenerationMode:
            # An operation without parameters has no malformed requests.
            with contextlib.suppress(Unsatisfiable, _OutOfTimeError), with_reporter(lambda said: None):
                limits(given(case=operation.as_strategy(generation_mode=mode))(send))()
    return sent
