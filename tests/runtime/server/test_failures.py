"""What clients are told where the server fails: a sentence, and nothing of where its files lie."""

from collections.abc import AsyncIterator

import pytest
from serving import Running

from anespec.runtime.engine.completion import Chunk
from anespec.runtime.engine.generation import Generation
from anespec.runtime.sampling.grammars import GrammarState
from anespec.runtime.server.http.errors import api_error
from anespec.system.errors import GRAMMAR_FAILED, AnespecError, ArtifactError, StorageError

PATH = "/srv/somebody/models/secret.anespec/shards/0.mlpackage"

FAILURES = (
    ArtifactError(f"{PATH}: the shard is damaged; convert again"),
    StorageError(f"{PATH}: cannot be read (Permission denied)"),
    AnespecError(f"the model could not be run: RuntimeError('{PATH}: no such file'); validate the artifact"),
    OSError(2, "No such file", PATH),
)

MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
REQUESTS = {
    "/v1/completions": {"prompt": "Once"},
    "/v1/chat/completions": MESSAGES,
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"max_tokens": 9, **MESSAGES},
    "/api/generate": {"model": "chatty", "prompt": "Once"},
    "/api/chat": {"model": "chatty", **MESSAGES},
    "/completion": {"prompt": "Once"},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_no_answer_names_a_path_and_the_log_does(
    served: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
    path: str,
    stream: bool,
) -> None:
    async def fail(_: Generation) -> AsyncIterator[tuple[int, Chunk]]:
        raise failure
        yield

    monkeypatch.setattr(Generation, "__aiter__", fail)
    answer = served.client.post(path, json=REQUESTS[path] | {"stream": stream})
    assert "log says " in answer.text
    assert "/home" not in answer.text and "secret" not in answer.text
    assert PATH in caplog.text


def test_what_names_no_path_is_told() -> None:
    said = "no token fits"
    assert api_error(AnespecError(said)).message == said


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
def test_a_grammar_that_fails_while_the_answer_is_generated_is_the_request_s_fault(
    served: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def fail(self: GrammarState) -> None:
        raise AnespecError(f"{GRAMMAR_FAILED}: it takes too long")

    monkeypatch.setattr(GrammarState, "allowed", fail)
    fields = {"grammar": "root ::= [a-z]+"}
    said = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    answer = served.client.post(path, json=said | fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["message"]) == ("invalid_grammar", f"{GRAMMAR_FAILED}: it takes too long")
    streamed = served.client.post(path, json=said | fields | {"stream": True})
    assert "invalid_grammar" in streamed.text
    assert "failed" not in caplog.text, "nobody else's fault"
