"""What a daemon logs of requests: one line each, nothing of what was said, and nothing a client made up."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Running, running
from waiting import until

from anespec.model import Model
from anespec.runtime.server.logs import JsonLines, Lines, logged

SECRET = "the zebra said"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def as_a_program_begins() -> Iterator[None]:
    """Whatever a verb that ran in this process before was told of being quiet."""
    above = logging.getLogger("anespec")
    before = above.level
    above.setLevel(logging.NOTSET)
    yield
    above.setLevel(before)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    with logged(as_json=True, stream=(found := io.StringIO())):
        yield found


def _facts(lines: io.StringIO, count: int = 1) -> list[dict[str, Any]]:
    """Those of requests; the last may be logged a little after its answer has come."""
    until(lambda: lines.getvalue().count("\n") >= count)
    return [json.loads(line) for line in lines.getvalue().splitlines()]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_line_that_says_all_but_what_was_said(
    served: Running, lines: io.StringIO, stream: bool
) -> None:
    body = {"prompt": SECRET, "max_tokens": 9, "temperature": 0, "n": 2, "stream": stream}
    answer = served.client.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
    (facts,) = _facts(lines)
    assert (facts["request_id"], facts["method"], facts["endpoint"]) == ("mine", "POST", "/v1/completions")
    assert (facts["status"], facts["model"], facts["key"]) == (200, "chatty", "")
    assert (facts["choices"], facts["output_tokens"], facts["finish"]) == (2, 18, "length")
    assert facts["accepted"] <= facts["drafted"]
    assert 0 < facts["prefill_seconds"] < facts["seconds"]
    assert {"queue_seconds", "decode_seconds", "time", "level"} <= facts.keys()
    assert SECRET not in lines.getvalue()
    assert "zebra" not in lines.getvalue()
    assert answer.status_code == 200


def test_what_was_said_is_logged_only_where_it_was_asked_for(model: Model, lines: io.StringIO) -> None:
    with running({"chatty": model}, log_text=True) as found:
        body = {"prompt": f"{SECRET}\n", "max_tokens": 3, "temperature": 0}
        text = found.client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    (facts,) = _facts(lines)
    assert facts["answers"] == [text]
    (prompt,) = facts["prompts"]
    assert prompt.endswith(f"{SECRET}\n")


def test_refusals_are_lines_too_and_health_is_none(served: Running, lines: io.StringIO) -> None:
    served.client.get("/health")
    served.client.get("/no/such/path")
    served.client.get("/v1/models", headers={"host": "evil.example"})
    served.client.post("/v1/completions", json={"prompt": SECRET, "temperature": SECRET})
    found = _facts(lines, 3)
    assert [(facts["endpoint"], facts["status"]) for facts in found] == [
        ("", 404),
        ("/v1/models", 403),
        ("/v1/completions", 400),
    ]
    assert "zebra" not in lines.getvalue()


def test_a_client_that_went_away_is_told_of(served: Running, lines: io.StringIO) -> None:
    body = {"prompt": "Once", "max_tokens": 480, "stream": True, "ignore_eos": True, "speculate": False}
    with served.client.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    (facts,) = _facts(lines)
    assert (facts["status"], facts["finish"]) == (200, "client_gone")


def test_no_client_can_make_up_a_line(served: Running) -> None:
    forged = '\n{"level": "info"}\r\n12:00:00 info: 200 GET /'
    with logged(as_json=False, stream=(found := _Terminal())):
        served.client.post("/v1/completions", json={"prompt": forged, "model": forged})
        served.client.get("/" + "%0a".join(["x", "12:00:00 info: 200 GET"]))
        logging.getLogger("anespec.serve").warning("about %s", forged)
        try:
            raise ValueError(forged)
        except ValueError:
            logging.getLogger("anespec.serve").exception("a failure")
        until(lambda: " info: 404 GET" in found.getvalue(), found.getvalue)
    lines = found.getvalue().splitlines()
    own = [line for line in lines if not line.startswith("  | ")]
    assert len(own) == 4, own
    assert [line.split()[1] for line in sorted(own)].count("info:") == 2


@pytest.mark.parametrize("kind", [JsonLines, Lines])
def test_a_record_of_anything_is_one_line(kind: type[logging.Formatter]) -> None:
    record = logging.LogRecord("anespec.serve", logging.INFO, "", 1, "a %s", ("b\nc\r\x1b[2J\u2028d",), None)
    assert len(kind().format(record).splitlines()) == 1


def test_the_log_is_json_where_nobody_reads_along() -> None:
    said = logging.getLogger("anespec.serve")
    for as_json, stream, expected in (
        (True, _Terminal(), True),
        (False, io.StringIO(), True),
        (False, _Terminal(), False),
    ):
        with logged(as_json, stream):
            said.info("hello")
        assert stream.getvalue().startswith("{") is expected
    assert said.propagate


def test_quiet_leaves_requests_out(served: Running) -> None:
    above = logging.getLogger("anespec")
    before = above.level
    above.setLevel(logging.ERROR)
    try:
        with logged(as_json=True, stream=(found := io.StringIO())):
            served.client.get("/no/such/path")
            logging.getLogger("anespec.serve").error("a failure")
    finally:
        above.setLevel(before)
    assert len(_facts(found)) == 1
