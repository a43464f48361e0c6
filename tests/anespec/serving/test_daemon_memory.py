"""What a daemon's drafting remembers outlives it, however it ends, and is nobody else's."""

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import run
from daemons import Started, started
from patience import PATIENCE
from waiting import until

ONE, TWO, OTHER = "0123456789abcdef", "fedcba9876543210", "0f1e2d3c4b5a6978"


def ask(daemon: Started, key: str, **others: Any) -> dict[str, Any]:
    """The timings of an answer."""
    answer = httpx.post(
        f"{daemon.url}/v1/completions",
        headers={"authorization": f"Bearer {key}"},
        json={"max_tokens": 60, "temperature": 0, "ignore_eos": True, **others},
        timeout=PATIENCE,
    ).raise_for_status()
    timings: dict[str, Any] = answer.json()["timings"]
    return timings


def passes(daemon: Started, key: str) -> int:
    """Decoding passes of one answer, once lookup no longer guesses in place of who remembers."""
    until(lambda: "lookup" not in ask(daemon, OTHER, prompt="Once upon a time")["drafts"])
    return int(ask(daemon, key, prompt="The little")["decode_passes"])


def kept(memory: Path) -> dict[str, int]:
    """Requests that are remembered, by the names of the keys."""
    facts = run("memory", "show", "--json", "--draft-memory", memory).json
    return {each["owner"].split()[0]: each["requests"] for each in facts["memories"]}


@pytest.mark.slow
def test_it_outlives_kill_and_end_and_no_key_draws_from_another(measured: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"one:{ONE}\ntwo:{TWO}\nother:{OTHER}\n")
    (tmp_path / "keys").chmod(0o600)
    memory = tmp_path / "memory"
    serve = (
        measured, "--model", f"twin={measured}", "--draft-memory", memory,
        "--api-key-file", tmp_path / "keys",
    )  # fmt: skip
    with started(tmp_path, *serve) as daemon:
        new = passes(daemon, ONE)
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(PATIENCE)
        assert kept(memory)["one"] == 1
    with started(tmp_path, *serve) as daemon:
        again, remembered = passes(daemon, TWO), passes(daemon, ONE)
    # Each daemon measures what passes cost, so drafts of the text itself may be longer in one of them.
    assert again > new * 0.8
    assert remembered < min(again, new) * 0.6, (new, again, remembered)
    assert daemon.process.returncode == 0
    assert set(kept(memory)) == {"one", "two", "other"}
