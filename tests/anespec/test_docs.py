"""The examples of the documents run as they stand."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_model import write_gguf

from anespec.embedded import model_path

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def examples(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


PAGES = ("README.md", "docs/library.md")
EXAMPLES = [(page, number) for page in PAGES for number in range(len(examples(page)))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples run: with the models that they name, and a cache that they share."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(model_path(), folder / "model.gguf")
    write_gguf(folder / "chat.gguf", metadata={"tokenizer.chat_template": TEMPLATE})
    return folder


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
def test_an_example_runs(page: str, number: int, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", examples(page)[number]],
        cwd=folder, env={"XDG_CACHE_HOME": str(folder), "PATH": ""},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout
