"""What tests share is made once, and each that asks has a copy of its own."""

from pathlib import Path

import pytest
from once import Once


def test_equal_keys_share_what_is_made_and_each_has_a_copy(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        path.mkdir()
        (path / "text").write_text(f"{len(made)}")

    (source := tmp_path / "source").write_text("one")
    (tmp_path / "run").mkdir()
    ask = [Once(tmp_path / "run") for _ in range(2)]
    first = ask[0](tmp_path / "1" / "artifact", make, source, {"context": 64})
    (first / "text").write_text("changed")
    assert (ask[1](tmp_path / "2" / "artifact", make, source, {"context": 64}) / "text").read_text() == "1"
    assert (ask[0](tmp_path / "3" / "artifact", make, source, {"context": 32}) / "text").read_text() == "2"
    source.write_text("another")
    assert (ask[0](tmp_path / "4" / "artifact", make, source, {"context": 64}) / "text").read_text() == "3"


def test_what_could_not_be_made_is_tried_again(tmp_path: Path) -> None:
    once = Once(tmp_path)

    def fail(path: Path) -> None:
        path.mkdir()
        raise RuntimeError("it broke")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="it broke"):
            once(tmp_path / "artifact", fail)
    assert once(tmp_path / "artifact", Path.mkdir).is_dir()
