"""Names of nothing, and weights that are not GGUF: one exit code each, and a sentence that leads further."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from anespec.cli.main import cli
from anespec.gguf.other_weights import refuse_other_weights
from anespec.manifests.store import Artifact
from anespec.models.missing import missing_model
from anespec.system.errors import AnespecError, ArtifactError, UnsupportedModelError

VERBS = ("chat", "convert", "doctor", "generate", "inspect", "pull", "serve", "tune", "validate")
MISSING, UNSUPPORTED = 8, 4


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A folder as `git clone` makes it of the hub's Qwen2-0.5B."""
    folder = tmp_path / "Qwen2-0.5B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"_name_or_path": "Qwen/Qwen2-0.5B"}))
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"\0" * 64)
    return folder


def error_of(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> AnespecError:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("ANESPEC_SERVE_PORT", "0")
    monkeypatch.chdir(folder)
    prompt = ("words",) if words[0] == "generate" else ()
    error = CliRunner().invoke(cli, words + prompt).exception
    assert isinstance(error, AnespecError), error
    return error


@pytest.mark.parametrize("name", ["none.gguf", "none", "none.anespec", "folder/none"])
@pytest.mark.parametrize("verb", VERBS)
def test_what_is_missing(verb: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    error = error_of(monkeypatch, tmp_path, verb, name)
    assert name in str(error)
    assert "hf:" not in str(error)
    assert error.exit_code == MISSING


@pytest.mark.parametrize(
    "words",
    [
        ("rm", "none"),
        ("serve", "--config", "none.toml"),
    ],
)
def test_what_is_missing_beside_models(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert error_of(monkeypatch, tmp_path, *words).exit_code == MISSING


@pytest.mark.parametrize("verb", VERBS)
def test_a_name_of_the_hub(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = str(error_of(monkeypatch, tmp_path, verb, "Qwen/Qwen3-0.6B-GGUF"))
    assert said.endswith("write hf:Qwen/Qwen3-0.6B-GGUF")


@pytest.mark.parametrize(
    ("name", "proposed"),
    [
        ("Qwen/Qwen3-0.6B-GGUF:Q8_0", "hf:Qwen/Qwen3-0.6B-GGUF:Q8_0"),
        ("a/b/c.gguf", "hf:a/b/c.gguf"),
        ("../b", None),
        ("/a/b", None),
        ("a/b/c/d", None),
    ],
)
def test_which_names_may_be_of_the_hub(name: str, proposed: str | None) -> None:
    said = str(missing_model(Path(name)))
    assert said.endswith(f"write {proposed}") if proposed else "hf:" not in said


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("place", [".", "model-00001-of-00002.safetensors"])
def test_weights_that_are_no_gguf(
    verb: str, place: str, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = error_of(monkeypatch, weights.parent, verb, str(weights / place))
    assert "of Hugging Face weights" in str(error)
    assert "hf:Qwen/Qwen2-0.5B-GGUF" in str(error)
    assert "convert_hf_to_gguf.py" in str(error)
    assert error.exit_code == UNSUPPORTED


@pytest.mark.parametrize(
    "config", ["", "[]", "{", '{"_name_or_path": 1}', '{"_name_or_path": "/models/qwen"}', "[" * 100_000]
)
def test_a_config_that_names_no_repository(weights: Path, config: str) -> None:
    (weights / "config.json").write_text(config)
    with pytest.raises(UnsupportedModelError, match=r"reads GGUFs: make one with llama\.cpp"):
        refuse_other_weights(weights)


def test_the_hubs_own_cache_names_the_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models--Qwen--Qwen2-0.5B" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(UnsupportedModelError, match=r"hf:Qwen/Qwen2-0\.5B-GGUF"):
        refuse_other_weights(folder)


def test_other_folders_are_not_called_weights(tmp_path: Path) -> None:
    (tmp_path / "data.bin").touch()
    with pytest.raises(ArtifactError, match="is not an artifact"):
        Artifact(tmp_path)
    refuse_other_weights(tmp_path / "none")
