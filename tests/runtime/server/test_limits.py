"""What a daemon lets a request take: its time, and places in the queue."""

import contextlib
import http.client
import json
import socket
import threading
from pathlib import Path

import pytest
from patience import PATIENCE
from serving import Running, running

import anespec
from anespec.model import Model
from anespec.runtime.engine.completion import start_together
from anespec.runtime.engine.requests import Principal
from anespec.runtime.server.daemon import Preparations
from anespec.runtime.server.http.bodies import BodyRoom
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.keys import KeyRing

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")


def test_an_owner_s_bodies_have_a_limit_together_and_leave_room_for_anothers() -> None:
    room = BodyRoom(100)
    with room.of("me") as take, room.of("me") as take_more, room.of("you") as take_yours:
        take(60)
        take_yours(100)
        with pytest.raises(ApiError) as refused:
            take_more(41)
        assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "1")
        take_more(40)
    with room.of("me") as take:
        take(100)
    assert not room._taken


def test_what_is_sent_counts_until_it_is_answered(model: Model) -> None:
    body = json.dumps({"prompt": "Once", "max_tokens": 1, "user": "x" * 10_000}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    with running({"chatty": model}, body_bytes=len(body)) as found, contextlib.ExitStack() as held:
        host, port = found.url.removeprefix("http://").split(":")
        clients = [held.enter_context(socket.create_connection((host, int(port)))) for _ in range(20)]
        for client in clients:
            client.sendall(head + body[:-1])
        answers = []
        for client in clients[-4:]:
            answers.append(http.client.HTTPResponse(client))
            answers[-1].begin()
        assert [answer.status for answer in answers] == [429] * 4
        for client in clients[:16]:
            client.sendall(body[-1:])
        for client in clients[:16]:
            answers.append(http.client.HTTPResponse(client))
            answers[-1].begin()
        assert [answer.status for answer in answers[4:]] == [200] * 16


def test_tokens_that_are_told_count_among_what_an_owner_s_requests_hold(model: Model) -> None:
    text = "a1" * 2000
    with running({"chatty": model}, body_bytes=len(text) + 100) as found:
        assert found.client.post("/tokenize", json={"content": text}).status_code == 200
        # With their pieces the tokens take more than sixteen of the largest bodies.
        refused = found.client.post("/tokenize", json={"content": text, "with_pieces": True})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_bytes")
        short = {"content": text[:300], "with_pieces": True}
        tokens = found.client.post("/tokenize", json=short).json()["tokens"]
        assert "".join(token["piece"] for token in tokens) == text[:300]


def test_texts_to_encode_take_turns_as_all_else_that_is_done_in_threads(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Principal] = []
    thread = Preparations.thread
    monkeypatch.setattr(
        Preparations, "thread", lambda self, caller, size: asked.append(caller) or thread(self, caller, size)
    )
    assert served.client.post("/tokenize", json={"content": "a"}).status_code == 200
    assert served.client.post("/detokenize", json={"tokens": [1]}).status_code == 200
    assert len(asked) == 2


def test_a_request_whose_time_is_over_in_the_queue_is_refused(model: Model) -> None:
    with running({"chatty": model}, request_seconds=1e-9) as found:
        answer = found.client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 400})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "timeout"
        assert "retry-after" in answer.headers


def test_more_choices_than_can_wait_are_a_wrong_request_and_a_full_queue_is_not(chatty: Path) -> None:
    with anespec.load(chatty, queue=1) as model, running({"chatty": model}) as found:
        fields = {"prompt": "Once upon a time", "max_tokens": 2}
        assert found.client.post("/v1/completions", json=fields | {"n": 5}).status_code == 200
        answer = found.client.post("/v1/completions", json=fields | {"n": 6})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
        with model.begin(
            [1, 2], anespec.GenerationOptions(max_tokens=500, choices=4, ignore_eos=True, temperature=2.0)
        ):
            refused = found.client.post("/v1/completions", json=fields | {"n": 2})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert model.load.waiting == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "Once", "n": 3}),
        ("/v1/completions", {"prompt": ["Once", "Twice", "Thrice"]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Once"}], "n": 3}),
    ],
)
def test_room_for_all_answers_is_asked_for_before_anything_is_prepared(
    chatty: Path, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, object]
) -> None:
    long = anespec.GenerationOptions(max_tokens=500, choices=4, ignore_eos=True, temperature=2.0)
    with (
        anespec.load(chatty, queue=2) as model,
        running({"chatty": model}) as found,
        model.begin([1, 2], long),
    ):
        for name in ("prompt_ids", "chat_prompt", "run"):
            monkeypatch.setattr(model, name, None)
        assert found.client.post(path, json=fields).status_code == 429
        assert found.client.post(path, json=fields | {"n": 7}).status_code == 400


@pytest.mark.slow
def test_a_key_that_fills_the_queue_leaves_room_for_another(chatty: Path, tmp_path: Path) -> None:
    secrets = {name: f"{name}-{'x' * 20}" for name in ("many", "one")}
    file = tmp_path / "keys"
    file.write_text("".join(f"{name}:{secret}\n" for name, secret in secrets.items()))
    file.chmod(0o600)
    long = anespec.GenerationOptions(max_tokens=500, choices=5, ignore_eos=True, temperature=2.0)
    with (
        anespec.load(chatty, queue=1) as model,
        running({"chatty": model}, keys=(ring := KeyRing.of_file(file))) as found,
    ):
        start_together(runs := model.run([1, 2], long, ring.caller(f"Bearer {secrets['many']}")))
        status = {}
        for name, secret in secrets.items():
            fields = {"prompt": "Once upon a time", "max_tokens": 2}
            headers = {"authorization": f"Bearer {secret}"}
            status[name] = found.client.post("/v1/completions", json=fields, headers=headers).status_code
        assert status == {"many": 429, "one": 200}
        assert all(run.summary.output_ids for run in runs)


def test_what_takes_too_long_to_prepare_is_given_up(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    encode = model.prompt_ids

    def slow(prompt: str) -> tuple[int, ...]:
        go_on.wait(PATIENCE)
        return encode(prompt)

    monkeypatch.setattr(model, "prompt_ids", slow)
    with running({"chatty": model}, request_seconds=0.05) as found:
        answer = found.client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 400})
        go_on.set()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "timeout")
        assert not found.daemon.preparations._tenants
    assert model.load.active == model.load.waiting == 0
