"""The examples of the documents run as they stand."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from converting import build
from patience import PATIENCE
from tiny_model import write_gguf

from anespec.cli.main import cli
from anespec.manifests.schema import Target

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHER_PROGRAMS = re.compile(
    r"anespec-worker|anespec\.embedded|aider|brew|curl|docker|llama-server|mlx_lm|package_server|pip |twine|"
    r"uv tool|\w\.py\b"
)
"""What has options of its own; a line of a page that names one is not looked at."""

RUN_EACH = "import sys\nfor example in sys.argv[1:]:\n    exec(compile(example, example, 'exec'), {})"


def examples(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def options_of(command: click.Command) -> set[str]:
    """Every option of a verb and of the verbs below it."""
    context = click.Context(command)
    found = {option for parameter in command.params for option in parameter.opts}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found |= options_of(below)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_and_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    lines = [line for line in text.splitlines() if not OTHER_PROGRAMS.search(line)]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", "\n".join(lines)))
    assert named <= options_of(cli) | {"--help"}
    folders = "anespec|benchmarks|convert|docs|embedded|manifests|packaging|runtime|swift|tests|validate"
    files = re.findall(rf"`((?:{folders})/[\w./-]*)`", text)
    assert [file for file in files if "NAME" not in file and not (ROOT / file).exists()] == []


@pytest.mark.slow
def test_the_examples_run(gguf: Path, artifact: Path, tmp_path: Path) -> None:
    found = [*examples("README.md"), *examples("docs/library.md")]
    assert len(found) == 9
    shutil.copy(gguf, tmp_path / "model.gguf")
    shutil.copytree(artifact, tmp_path / "model.anespec")
    chat = write_gguf(tmp_path / "chat.gguf", metadata={"tokenizer.chat_template": TEMPLATE})
    build(chat, tmp_path / "chat.anespec", target=Target.CPU)
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, *found],
        cwd=tmp_path,
        env={
            "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "",
            "NUMBA_CACHE_DIR": os.environ["NUMBA_CACHE_DIR"],
        },
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout
