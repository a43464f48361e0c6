"""What a person does with the commands, through whole processes from the beginning to the end."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import command_of, run
from daemons import started
from openai import OpenAI
from patience import PATIENCE
from waiting import until

from anespec.embedded import model_path

PROMPT = "def test_read(self):\n    self.assertEqual(self.file.read(1), b'a')\n    self.assertEqual("
SAME_TEXT = ("-p", PROMPT, "-n", 64, "--temperature", 0, "--json")

pytestmark = pytest.mark.journey


def test_from_a_gguf_to_text_that_drafts_do_not_change(tmp_path: Path) -> None:
    model = tmp_path / "model.anespec"
    converted = run("convert", model_path(), "-o", model, "--target", "cpu", "--context", 256, "--json")
    assert converted.code == 0, converted.err
    validated = run("validate", model, "--gate", "golden", "--gate", "exactness", "--quick", "--json")
    assert validated.code == 0, validated.err
    standings = {gate["name"]: gate["standing"] for gate in validated.json["gates"]}
    assert standings["golden"] == "pass"
    # A machine may forbid drafts; then the texts are equal because there are none.
    drafts = () if standings["exactness"] == "pass" else ("--allow-inexact",)
    speculative = run("generate", model, *SAME_TEXT, *drafts)
    sequential = run("generate", model, *SAME_TEXT, "--drafter", "none")
    assert speculative.code == sequential.code == 0, speculative.err + sequential.err
    assert sum(speculative.json["accepted_by_position"]) > 0
    assert sum(sequential.json["accepted_by_position"]) == 0
    if not drafts:
        assert speculative.json["output_ids"] == sequential.json["output_ids"]


def test_a_daemon_serves_openai_s_client_and_ends(trained: Path, tmp_path: Path) -> None:
    expected = run("generate", trained, *SAME_TEXT, "--drafter", "none").json
    with started(tmp_path, trained) as daemon:
        client = OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        asked = {"model": "embedded", "prompt": PROMPT, "max_tokens": 64, "temperature": 0}
        whole = client.completions.create(**asked)  # type: ignore[call-overload]
        streamed = client.completions.create(**asked, stream=True)  # type: ignore[call-overload]
        assert whole.choices[0].text == expected["text"]
        assert "".join(part.choices[0].text for part in streamed if part.choices) == expected["text"]
        process = daemon.process
    assert process.returncode == 0, daemon.log.read_text()


Begun = Callable[[], bool]


def killed(*arguments: object, begun: Begun) -> bool:
    """Kill a command with all its processes once it has `begun`; return whether it was still running."""
    process = subprocess.Popen(
        command_of(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until(lambda: process.poll() is not None or begun(), lambda: "it neither begins nor ends", pause=0.002)
    was_running = process.poll() is None
    if was_running:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return was_running


def test_a_killed_conversion_goes_on(tmp_path: Path) -> None:
    model = tmp_path / "model.anespec"
    command = (
        "convert",
        model_path(),
        "-o",
        model,
        "--target",
        "cpu",
        "--topology",
        "1+1+1+1+1+1",
        "--jobs",
        1,
    )
    assert killed(*command, begun=lambda: any(tmp_path.rglob("weight.bin")))
    assert not model.exists()
    again = run(*command, "--json")
    assert again.code == 0, again.err
    assert [path.name for path in tmp_path.iterdir()] == ["model.anespec"]
    assert run("validate", model, "--gate", "golden", "--json").code == 0


def test_a_killed_check_leaves_the_artifact_whole(trained: Path, tmp_path: Path) -> None:
    model = shutil.copytree(trained, tmp_path / "model.anespec")
    shutil.rmtree(model / "gates", ignore_errors=True)
    before = {path.relative_to(model): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    command = ("validate", model, "--gate", "golden", "--gate", "exactness", "--quick")
    assert killed(*command, begun=lambda: (model / "gates" / "golden.json").exists())
    left = {path.relative_to(model): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    assert before.items() <= left.items()
    again = run(*command, "--json")
    assert again.code == 0, again.err


def test_a_killed_datastore_build_keeps_the_older_one(gguf: Path, tmp_path: Path) -> None:
    older, newer, store = (tmp_path / name for name in ("older.txt", "newer.txt", "mine"))
    older.write_text("An older text.\n" * 10)
    newer.write_text("".join(f"Line {number} says {number * 7919 % 1009}.\n" for number in range(20_000)))
    command = ("--vocab", gguf, "-o", store, "--force")
    assert run("datastore", "build", older, *command).code == 0
    kept, files = store.read_bytes(), set(tmp_path.iterdir())
    assert killed("datastore", "build", newer, *command, begun=lambda: set(tmp_path.iterdir()) > files)
    assert store.read_bytes() == kept
    assert run("datastore", "build", newer, *command).code == 0
    assert store.read_bytes() != kept


def test_a_killed_daemon_keeps_what_it_learnt(trained: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    with started(tmp_path, trained, "--draft-memory", memory) as daemon:
        client = OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        client.completions.create(model="embedded", prompt=PROMPT, max_tokens=32, temperature=0)
        shown = ("memory", "show", "--json", "--draft-memory", memory)
        until(lambda: run(*shown).json["memories"], lambda: "nothing is remembered")
        kept = run(*shown).json["memories"]
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
    assert [each["requests"] for each in run(*shown).json["memories"]] == [each["requests"] for each in kept]
    with started(tmp_path, trained, "--draft-memory", memory) as daemon:
        assert daemon.get("/health").status_code == 200
