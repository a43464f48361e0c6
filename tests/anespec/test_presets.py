"""Presets: found by name or path, checked, and taken up by flags and by a daemon's models."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from anespec.cli.verbs.chat import chat
from anespec.cli.verbs.generate import generate
from anespec.cli.verbs.run import run
from anespec.models.presets import find_preset, preset_names, read_preset
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.options import ServeOptions
from anespec.serving.config_file import PoolOptions, read_config
from anespec.serving.request import ServeRequest
from anespec.system.errors import StorageError, UsageError

WRITER = """
model = "hf:owner/repo:Q8_0"
system = "You write."
context = 2048
max_tokens = 40
stop = ["END"]

[sampling]
temperature = 1
top_k = 40
logit_bias = { 13 = -5.0 }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = tmp_path / "anespec" / "presets"
    found.mkdir(parents=True)
    return found


def test_what_a_preset_says(folder: Path) -> None:
    (folder / "writer.toml").write_text(WRITER)
    assert find_preset("writer") == folder / "writer.toml"
    assert preset_names() == ["writer"]
    assert read_preset(find_preset("writer")).flags() == {
        "model": Path("hf:owner/repo:Q8_0"),
        "system": "You write.",
        "context": 2048,
        "max_tokens": 40,
        "stop": ("END",),
        "temperature": 1.0,
        "top_k": 40,
        "logit_bias": ((13, -5.0),),
    }


@pytest.mark.parametrize(
    ("words", "model", "prompt"),
    [
        (["--preset", "writer", "Once // upon"], "hf:owner/repo:Q8_0", "Once // upon"),
        (["--preset", "writer", "-p", "Once"], "hf:owner/repo:Q8_0", "Once"),
        (["--preset", "writer", "other.gguf", "-p", "Once"], "other.gguf", "Once"),
        (["--preset", "writer", "other.gguf", "Once"], "other.gguf", "Once"),
        (["other.gguf", "Once"], "other.gguf", "Once"),
    ],
)
def test_generate_takes_the_model_of_a_preset(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], model: str, prompt: str
) -> None:
    (folder / "writer.toml").write_text(WRITER.replace('system = "You write."\n', ""))
    asked: list[tuple[str, str | None]] = []
    monkeypatch.setattr(
        "anespec.cli.verbs.generate._generate_one",
        lambda verb, given, *_: asked.append((str(verb.model), given.prompt)),
    )
    result = CliRunner().invoke(generate, words)
    assert result.exception is None, result.output
    assert asked == [(model, prompt)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a model"),
        (["other.gguf"], "give one prompt"),
        (["other.gguf", "Once", "upon"], "put it in quotes"),
    ],
)
def test_generate_says_what_lacks(words: list[str], said: str) -> None:
    result = CliRunner().invoke(generate, words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_help_says_what_holds_where_nothing_is_said() -> None:
    def help_of(verb: click.Command) -> str:
        return " ".join(CliRunner().invoke(verb, ["--help"]).stdout.split())

    for verb in (chat, run):
        assert "default: what the model's file says, else 0.8;" in help_of(verb)
        assert "The random seed: the same seed gives the same text. [default: another each time]" in help_of(
            verb
        )
    assert "default: what the model's file says, else 0;" in help_of(generate)
    assert "The random seed: the same seed gives the same text. [default: 0]" in help_of(generate)


def test_paths_are_relative_to_the_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text('model = "small.gguf"')
    assert read_preset(find_preset(str(path))).model == tmp_path / "small.gguf"
    path.write_text('model = "small"')
    assert read_preset(path).model == Path("small"), "the name of a model in the cache"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sytem = 'x'", "there is no key 'sytem'; did you mean system?"),
        ("temperature = 1", "there is no key 'temperature'; write it below [sampling]"),
        ("[sampling]\ntemprature = 1", "there is no key 'sampling.temprature'; did you mean temperature?"),
        ("[sampling]\nspeculate = false", "the keys are temperature, top_k"),
        ("[sampling]\ntemperature = 'hot'", "temperature is 'hot'; it must be a number between 0 and 100"),
        ("[sampling]\ntop_p = 7", "top_p is 7; it must lie between 0 and 1"),
        ("sampling = 1", "sampling must be a table"),
        ("model = 7", "model must be a text"),
        ("context = 0", "context is 0; it must be at least 1"),
        ("system = 1", "system is 1"),
        ("=", "is not valid TOML"),
        ("\xff", "is not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_preset(folder: Path, text: str, said: str) -> None:
    (folder / "bad.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as refused:
        read_preset(find_preset("bad"))
    assert str(refused.value).startswith(f"{folder / 'bad.toml'}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_presets_that_are_not_there(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"has none yet; write nope.toml there"):
        find_preset("nope")
    (folder / "writer.toml").write_text("")
    with pytest.raises(UsageError, match=r"there is no preset 'nope'; .* has writer"):
        find_preset("nope")
    with pytest.raises(UsageError, match="there is no such preset"):
        find_preset("./nope.toml")
    (folder / "pipe.toml").mkdir()
    with pytest.raises((UsageError, StorageError)):
        read_preset(find_preset("pipe"))


def test_a_daemons_model_answers_by_a_preset(folder: Path, tmp_path: Path) -> None:
    (folder / "writer.toml").write_text(WRITER)
    (tmp_path / "own.toml").write_text('system = "Mine."')
    config = tmp_path / "serve.toml"
    config.write_text(
        """
        [models]
        plain = "small.gguf"
        [models.writer]
        preset = "writer"
        threads = 2
        [models.mine]
        path = "small.gguf"
        preset = "./own.toml"
        """
    )
    found = read_config(config)
    asked = ServeRequest(None, ServeOptions(), PoolOptions(), LoadOptions(), found)
    sources = asked.names(found)
    writer, mine = sources["writer"], sources["mine"]
    assert writer.path == Path("hf:owner/repo:Q8_0")
    assert (writer.loading.context, writer.loading.threads) == (2048, 2)
    assert (writer.preset.system, writer.preset.options.temperature) == ("You write.", 1.0)
    assert (mine.path, mine.preset.system) == (tmp_path / "small.gguf", "Mine.")
    assert sources["plain"].preset.system is None
    config.write_text('[models.mine]\npreset = "./own.toml"')
    with pytest.raises(
        UsageError, match=r"models.mine has no path; write path = PATH in it, or preset = NAME"
    ):
        read_config(config)
    config.write_text('[models.mine]\npath = "small.gguf"\npreset = "nope"')
    with pytest.raises(UsageError, match=r"models.mine: there is no preset 'nope'; .* has writer"):
        read_config(config)
