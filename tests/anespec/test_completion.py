"""What a shell is told may follow: verbs, options, models' paths and the names of the cache."""

import os
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete
from commands import run

from anespec.cli.main import cli
from anespec.models.cache import CachedModel, ModelCache

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "_ANESPEC_COMPLETE"


def completed(*words: str) -> list[CompletionItem]:
    *arguments, begun = words
    return ShellComplete(cli, {}, "anespec", VARIABLE).get_completions(arguments, begun)


def values(*words: str) -> list[str]:
    return [item.value for item in completed(*words)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: models, other things, and a cache that is empty."""
    for name in ("a.gguf", "b.txt", "more/c.gguf", "d.anespec/manifest.json", ".hidden.gguf"):
        path = tmp_path / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "here"


def test_verbs_and_options() -> None:
    assert values("ch") == ["chat"]
    assert set(values("")) >= {"convert", "validate", "generate", "chat", "list", "rm"}
    assert "--temperature" in values("chat", "m.gguf", "--temp")
    assert values("generate", "m", "--drafter", "look") == ["lookup"]


@pytest.mark.parametrize("verb", ["generate", "chat", "validate"])
def test_models_and_the_folders_beside_them(verb: str, folder: Path) -> None:
    assert values(verb, "") == ["a.gguf", "d.anespec/", "more/"]
    assert values(verb, "a") == ["a.gguf"]
    assert values(verb, f"{folder}/more/") == [f"{folder}/more/c.gguf"]
    assert values(verb, ".hid") == [".hidden.gguf"]


def test_where_no_model_is_the_shell_knows_better() -> None:
    for begun in ("b", "missing/x", "~nobody-has-this-name/"):
        (item,) = completed("chat", begun)
        assert (item.type, item.value) == ("file", begun)


def test_names_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelCache, "models", lambda self: [CachedModel("abcd1234", self.root, None)])
    assert values("rm", "ab") == ["abcd1234"]
    assert values("chat", "ab") == ["abcd1234"]


def test_bash_gets_words_and_success() -> None:
    environment = os.environ | {VARIABLE: "bash_complete", "COMP_WORDS": "anespec gen", "COMP_CWORD": "1"}
    done = run(environment=environment)
    assert (done.code, done.out) == (0, "plain,generate\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_line_makes_a_script_for_each_shell(shell: str) -> None:
    page = (ROOT / "docs" / "chat.md").read_text()
    assert f"{VARIABLE}={shell}_source anespec" in page
    environment = os.environ | {VARIABLE: f"{shell}_source"}
    done = run(environment=environment)
    if shell == "bash" and done.code:
        pytest.skip("needs bash 4.4")
    assert done.code == 0
    assert f"{VARIABLE}={shell}_complete" in done.out
