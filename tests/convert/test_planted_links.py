"""Traps laid where a conversion works: nothing outside its own folders is read, changed or removed."""

import os
from pathlib import Path

import pytest
from converting import build
from tiny_model import TinyModel, write_gguf

from anespec.convert.pipeline import ShardProgress
from anespec.manifests.store import Artifact
from anespec.system.errors import StorageError

TOPOLOGY = (1, 1)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("source") / "tiny.gguf", TinyModel())


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of the user's, which nobody but the user may change."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "letter.txt").write_text("mine")
    return folder


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where the artifact is to stand, in a folder that somebody else has prepared."""
    (tmp_path / "theirs").mkdir()
    return tmp_path / "theirs" / "m.anespec"


def _is_whole(mine: Path) -> bool:
    return {path.name: path.read_text() for path in mine.iterdir()} == {"letter.txt": "mine"}


@pytest.mark.parametrize("name", [".m.anespec.partial", ".m.anespec.lock", ".m.anespec.replaced"])
@pytest.mark.parametrize("target", ["", "letter.txt", "missing"])
def test_a_link_at_a_name_that_a_run_uses_is_refused(
    gguf: Path, output: Path, mine: Path, name: str, target: str
) -> None:
    (output.parent / name).symlink_to(mine / target)
    output.mkdir()
    with pytest.raises(StorageError, match=r"is a link|is not a lock file"):
        build(gguf, output, replace=True)
    assert _is_whole(mine)
    assert not list(output.iterdir())
    assert (output.parent / name).is_symlink()


@pytest.mark.fast_only("shards/.layers_00_01.partial.mlpackage-folder")
@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("shards", "folder"),
        ("shards", "pipe"),
        ("shards/layers_00_01.json", "file"),
        ("shards/layers_00_01.mlpackage", "folder"),
        ("shards/.layers_00_01.partial.mlpackage", "folder"),
        ("tokens.gguf", "file"),
        ("tokens.gguf", "hard link"),
        ("tokens.gguf", "pipe"),
        ("manifest.json", "file"),
        ("manifest.json", "hard link"),
    ],
)
def test_what_lies_in_the_work_folder_is_not_followed(
    gguf: Path, output: Path, mine: Path, place: str, kind: str
) -> None:
    trap = output.with_name(".m.anespec.partial") / place
    trap.parent.mkdir(parents=True)
    match kind:
        case "file":
            trap.symlink_to(mine / "letter.txt")
        case "folder":
            trap.symlink_to(mine)
        case "hard link":
            trap.hardlink_to(mine / "letter.txt")
        case "pipe":
            os.mkfifo(trap)
    build(gguf, output, topology=TOPOLOGY)
    assert _is_whole(mine)
    assert not [path for path in output.rglob("*") if path.is_symlink()]
    artifact = Artifact(output)
    for shard in artifact.manifest.shards:
        artifact.shard_path(shard)


def test_a_link_within_a_finished_shard_is_not_taken_over(gguf: Path, output: Path, mine: Path) -> None:
    def interrupt(_: ShardProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(gguf, output, topology=TOPOLOGY, on_progress=interrupt)
    (weights,) = output.parent.rglob("weight.bin")
    weights.rename(mine / "weight.bin")
    weights.symlink_to(mine / "weight.bin")
    kept = (mine / "weight.bin").read_bytes()
    assert build(gguf, output, topology=TOPOLOGY).reused_shards == 0
    assert (mine / "weight.bin").read_bytes() == kept


def test_links_that_go_round_in_a_circle(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StorageError, match="a: is a link to b"):
        build(gguf, tmp_path / "a")
    with pytest.raises(StorageError, match="cannot be written"):
        build(gguf, tmp_path / "a" / "m.anespec")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
