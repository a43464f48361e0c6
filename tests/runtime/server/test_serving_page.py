"""docs/serving.md holds: its examples run against a daemon, its file is one, its limits are the defaults."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from pydantic_core import PydanticUndefined
from serving import Running

from anespec.models.presets import presets_folder
from anespec.runtime.server.options import ServeOptions
from anespec.serving.config_file import read_config

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "serving.md").read_text()
URL = "http://127.0.0.1:8080"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


CURLS = [block for block in blocks("sh") if block.startswith("curl ")]


@pytest.mark.parametrize("example", CURLS, ids=lambda text: text.split()[1].removeprefix(URL))
def test_the_examples_of_curl_are_answered(served: Running, example: str) -> None:
    command = example.replace(URL, served.url).replace('"NAME"', '"chatty"')
    done = subprocess.run(
        ["sh", "-c", command.replace("curl ", "curl --silent --show-error --fail ", 1)],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "chatty" in done.stdout
    assert '"error"' not in done.stdout


@pytest.mark.slow
def test_the_examples_of_openais_client_run(served: Running) -> None:
    examples = blocks("python")
    assert len(examples) == 2
    code = "\n".join(examples).replace(URL, served.url)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    # So small a model may go on with spaces, which JSON allows, until its context is full.
    assert re.search(r"\{\s*\"sunny\"|\{\s{100}", done.stdout)


def test_the_file_of_options_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    presets_folder().mkdir(parents=True)
    (presets_folder() / "writer.toml").write_text('model = "large.gguf"\n')
    (example,) = blocks("toml")
    path = tmp_path / "serve.toml"
    path.write_text(example)
    found = read_config(path)
    assert list(found.models) == ["large", "small", "writer"]
    assert (found.models["small"].sequences, found.options["port"]) == (8, 8081)


def test_the_limits_are_the_defaults() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)` \| ([0-9]+) \|", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for option, default in rows:
        known = ServeOptions.model_fields[option.replace("-", "_")].default
        assert known is not PydanticUndefined and known == float(default)
