"""Where the system refuses memory, the command ends with a sentence and code 1, whatever ran into that."""

import sys
from pathlib import Path

import pytest

from anespec.cli import main as command
from anespec.manifests.store import Artifact


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "memory ran out"),
        (ImportError("lib.so: failed to map\nsegment"), "a library cannot be loaded (lib.so: failed to map"),
    ],
    ids=["allocation", "library"],
)
def test_want_of_memory_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    sentence: str,
    tmp_path: Path,
) -> None:
    def fail(*_: object) -> None:
        raise error

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(Artifact, "__init__", fail)
    monkeypatch.setattr(command, "leave", leave)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["anespec", "inspect", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {sentence}")
