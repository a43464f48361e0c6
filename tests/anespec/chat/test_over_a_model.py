"""A chat over a real model: what it has read is kept from turn to turn, and the verb works over pipes."""

import json
import os
import pty
import select
import subprocess
import termios
from itertools import takewhile
from pathlib import Path

import pytest
from chatty_model import write_chatty
from click.testing import CliRunner, Result
from commands import command_of, run
from file_server import FileServer, serving_file
from patience import PATIENCE
from scripted import Seen

import anespec
from anespec.cli.chat.conversation import Conversation
from anespec.cli.chat.loaded_model import LoadedModel
from anespec.cli.main import cli
from anespec.models.cache import resolve_artifact
from anespec.runtime.options import GenerationOptions
from anespec.system.errors import Interrupted, NotFoundError, UsageError

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with a chat template, as a GGUF; and a cache of its own."""
    return write_chatty(tmp_path_factory.mktemp("chatting") / "chatty.gguf")


@pytest.fixture(autouse=True)
def cache_of_this_test(chatting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(chatting.parent))


@pytest.mark.slow
def test_the_next_turn_reuses_what_the_model_has_read(chatting: Path) -> None:

    with anespec.load(resolve_artifact(chatting), threads=1) as model:
        chat = Conversation(
            LoadedModel(model, "embedded"),
            Seen().screen,
            GenerationOptions(max_tokens=24),
            "Answer in Python.",
        )
        chat.ask("def area(self):")
        first = chat.last
        chat.ask("def volume(self):")
        second = chat.last
    assert first is not None
    assert second is not None
    read = [*first.prompt_ids, *first.output_ids]
    pairs = zip(read, second.prompt_ids, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert shared > len(first.prompt_ids)
    # The last token that was committed was never an input.
    assert second.statistics.reused_tokens >= shared - 1


@pytest.mark.slow
def test_a_line_in_is_an_answer_out(chatting: Path) -> None:
    lines = 'def area(self):\n"""def\nvolume():"""\n/stats\n'
    options = ("--threads", "1", "-n", "5", "--seed", "7")
    outcome = run("chat", chatting, *options, stdin=lines)
    assert outcome.code == 0, outcome.err
    assert "2 turns\ncontext: " in outcome.err
    assert "\x1b" not in outcome.out + outcome.err
    again = run("chat", "chatty", *options, stdin=lines + "/nope\nnever\n")
    assert again.code == 7
    assert again.out == outcome.out
    assert again.err.strip().splitlines()[-1].startswith("error: there is no command")


@pytest.mark.slow
def test_run_answers_as_chat_does(chatting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer is the first of a chat, however the prompt comes; 0.8 is the temperature of both."""
    options = ("--threads", "1", "-n", "8", "--seed", "7")
    text = run("chat", chatting, *options, stdin="def area(self):\n").out
    assert text.strip()
    assert run("run", chatting, "def", "area(self):", *options).out == text
    assert run("run", chatting, *options, "--temperature", "0.8", stdin="def area(self):\n").out == text
    both = run("run", chatting, "area", *options, "--json", stdin="def\n").json
    ours = run("run", chatting, "def\n\narea", *options, "--json").json
    assert both["prompt_ids"] == ours["prompt_ids"]
    greedy = run("run", chatting, "def area(self):", *options, "--temperature", "0").out
    assert greedy != text
    # The same from a preset, which has the model, too; what is typed goes before it.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "anespec" / "presets"
    folder.mkdir(parents=True)
    said = f"model = {json.dumps(str(chatting))}\nmax_tokens = 8\n[sampling]\ntemperature = 0\nseed = 7\n"
    (folder / "plain.toml").write_text(said)
    assert run("run", "--preset", "plain", "--threads", "1", "def area(self):").out == greedy
    warm = run("run", "--preset", "plain", "--threads", "1", "--temperature", "0.8", "def", "area(self):")
    assert warm.out == text
    (folder / "told.toml").write_text(f'system = "Answer in Python."\n{said}')
    told = run("run", "--preset", "told", "--threads", "1", "--json", "def area(self):").json
    same = run("run", chatting, "--system", "Answer in Python.", *options, "--json", "def area(self):").json
    assert told["prompt_ids"] == same["prompt_ids"] != ours["prompt_ids"]
    listing = run("chat", "--preset", "nope")
    assert listing.code == 2
    assert listing.err.strip().endswith(f"there is no preset 'nope'; {folder} has plain and told")


def test_run_needs_something_to_answer(chatting: Path) -> None:
    for arguments in (("run", chatting), ("run",), ("run", chatting, "--json")):
        refused = run(*arguments)
        assert refused.code == 2
        assert "Traceback" not in refused.err


def test_pull_brings_and_converts(chatting: Path) -> None:
    with serving_file(FileServer(chatting.read_bytes())) as server:
        url = f"{server.url}/files/pulled.gguf"
        first = run("pull", url, "--json").json
        assert first["downloaded_bytes"] == first["bytes"] == chatting.stat().st_size
        assert Path(first["artifact"]).is_dir()
        assert Path(first["file"]).read_bytes() == chatting.read_bytes()
        only = run("pull", url, "--no-convert")
        assert only.out.startswith(f"{first['file']}: was downloaded before, and {url} has no newer version.")
        assert "converted" not in only.out
        ready = run("pull", url).out
        assert f"{first['artifact']}: converted and ready. Next: anespec run {url}" in ready
    refused = run("pull", "nothing-there")
    assert refused.code == 8
    assert refused.is_one_sentence()


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "ends"), [([], 0), (["--allow-special"], 1)])
def test_a_message_holds_special_tokens_only_where_they_are_allowed(
    flags: list[str], ends: int, chatting: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"messages": [{"role": "user", "content": "a<|endoftext|>b"}]}))
    options = ["--threads", "1", "-n", "1", *flags]
    many = run("generate", chatting, "--prompt-file", prompts, *options)
    one = run("generate", chatting, "--chat", "-p", "a<|endoftext|>b", "--json", *options)
    for outcome in (many, one):
        assert outcome.code == 0, outcome.err
        assert outcome.json["prompt_ids"].count(0) == ends


@pytest.mark.slow
def test_a_terminal_has_a_prompt_and_the_end_of_input_leaves(chatting: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "NO_COLOR": "1"}
    environment["XDG_STATE_HOME"] = str(chatting.parent)
    command = command_of("chat", chatting, "--threads", "1", "-n", "5")
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    terminal = Terminal(ours)
    try:
        terminal.wait_for(">>>")
        os.write(ours, b"def area(self):\r")
        terminal.wait_for("changes that")
        terminal.wait_for(">>>")
        os.write(ours, b"\x04")
        while terminal.read():
            pass
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    os.close(ours)
    assert "/help lists commands" in terminal.shown
    assert "\x1b[32m" not in terminal.shown
    assert "def area" in (chatting.parent / "anespec" / "chat_history").read_text()


class Terminal:
    """What a terminal has shown so far, read from its other end."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.shown = ""
        self.waited_for = 0

    def wait_for(self, text: str) -> None:
        """Read until `text` comes, after what was waited for before."""
        while text not in self.shown[self.waited_for :]:
            assert self.read(), self.shown
        self.waited_for = self.shown.index(text, self.waited_for) + len(text)

    def read(self) -> bool:
        """Some more; False at the end."""
        ready, _, _ = select.select([self.descriptor], [], [], PATIENCE)
        assert ready, self.shown
        try:
            part = os.read(self.descriptor, 1 << 16)
        except OSError:
            return False
        self.shown += part.decode(errors="replace")
        return bool(part)


def verb(*arguments: str, answer: str = "") -> Result:
    """A cache verb in this process, which spares the start of another."""
    return CliRunner().invoke(cli, arguments, input=answer)


@pytest.mark.slow
def test_the_cache_shows_and_removes_what_was_made(chatting: Path) -> None:
    anespec.load(resolve_artifact(chatting), gates="now", threads=1).close()
    (listed,) = json.loads(verb("list", "--json").output)["models"]
    assert (listed["name"], listed["finished"]) == ("chatty", True)
    assert set(listed["gates"]) >= {"golden", "exactness"}
    shown = verb("list").output
    assert "4 x 1024" in shown
    assert "pass" in shown
    assert json.loads(verb("inspect", "chatty", "--json").output)["target"] == listed["target"]
    assert isinstance(verb("rm", "other", "--yes").exception, NotFoundError)
    assert verb("rm").exit_code == 2
    assert isinstance(verb("rm", "chatty", answer="n\n").exception, Interrupted)
    unanswered = verb("rm", "chatty").exception
    assert isinstance(unanswered, UsageError)
    assert "--yes" in str(unanswered)
    assert json.loads(verb("rm", "chatty", "--yes", "--json").output)["removed"] == [listed["key"]]
    assert json.loads(verb("list", "--json").output)["models"] == []
    assert "No model" in verb("list").output


@pytest.mark.slow
def test_a_context_is_only_chosen_for_a_gguf(artifact: Path) -> None:
    other = run("chat", artifact, "--context", "128")
    assert other.code == 2
    assert other.is_one_sentence()
