"""What a daemon lets a request take: its time, and places in the queue."""

import threading
from pathlib import Path

import pytest
from serving import running

import anespec
from anespec.model import Model
from anespec.runtime.callers import Caller
from anespec.runtime.completion import start_together
from anespec.runtime.server.keys import KeyRing


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
        with model.begin([1, 2], anespec.GenerationOptions(max_tokens=500, choices=4, ignore_eos=True)):
            refused = found.client.post("/v1/completions", json=fields | {"n": 2})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert model.load.waiting == 0


def test_a_key_that_fills_the_queue_leaves_room_for_another(chatty: Path, tmp_path: Path) -> None:
    secrets = {name: f"{name}-{'x' * 20}" for name in ("many", "one")}
    file = tmp_path / "keys"
    file.write_text("".join(f"{name}:{secret}\n" for name, secret in secrets.items()))
    file.chmod(0o600)
    long = anespec.GenerationOptions(max_tokens=150, choices=5, ignore_eos=True)
    with (
        anespec.load(chatty, queue=1) as model,
        running({"chatty": model}, keys=KeyRing.of_file(file)) as found,
    ):
        start_together(runs := model.run([1, 2], long, Caller("many")))
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
        go_on.wait(20)
        return encode(prompt)

    monkeypatch.setattr(model, "prompt_ids", slow)
    with running({"chatty": model}, request_seconds=0.05) as found:
        answer = found.client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 400})
        go_on.set()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "timeout")
        assert not found.daemon.preparations._owners
    assert model.load.active == model.load.waiting == 0
