"""One child, one answer: what a child prints or raises is what its parent gets."""

from pathlib import Path

import pytest
from patience import PATIENCE

from anespec.system.errors import AnespecError, StorageError
from anespec.validate.child_answer import ChildLostError, child_answer

CHILD = """
import os, signal
from anespec.system.errors import ArtifactError, StorageError
from anespec.validate.child_answer import answer_parent

def answer(arguments):
    print("a library speaks")
    {does}

answer_parent(answer)
"""


def answer_of(does: str, folder: Path, patch: pytest.MonkeyPatch) -> bytes:
    """The answer of a child that does that, to the argument `asked`."""
    (folder / "answering_child.py").write_text(CHILD.format(does=does))
    patch.syspath_prepend(folder)
    return child_answer("answering_child", ["asked"], PATIENCE)


def test_an_answer_is_what_it_returns_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer_of("return arguments[0].encode()", tmp_path, monkeypatch) == b"asked"


@pytest.mark.parametrize(
    ("does", "kind", "words"),
    [
        ("raise StorageError('the disk is full')", StorageError, "^the disk is full$"),
        ("raise ArtifactError('is damaged')", AnespecError, "^is damaged$"),
        ("raise KeyError('a bug')", AnespecError, "^KeyError: 'a bug'$"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", ChildLostError, "^Segmentation fault: a library speaks$"),
    ],
)
def test_how_it_fails(
    does: str, kind: type[AnespecError], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(kind, match=words):
        answer_of(does, tmp_path, monkeypatch)
