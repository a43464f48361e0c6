"""The examples of the documents run as they stand."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from converting import build
from tiny_model import write_gguf

from anespec.manifests.schema import Target

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
RUN_EACH = "import sys\nfor example in sys.argv[1:]:\n    exec(compile(example, example, 'exec'), {})"


def examples(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def test_the_examples_run(gguf: Path, artifact: Path, tmp_path: Path) -> None:
    found = [*examples("README.md"), *examples("docs/library.md")]
    assert len(found) == 8
    shutil.copy(gguf, tmp_path / "model.gguf")
    shutil.copytree(artifact, tmp_path / "model.anespec")
    chat = write_gguf(tmp_path / "chat.gguf", metadata={"tokenizer.chat_template": TEMPLATE})
    build(chat, tmp_path / "chat.anespec", target=Target.CPU)
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, *found],
        cwd=tmp_path, env={"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout
