"""A full disk, wherever it strikes: one clear sentence, and nothing left beside the output."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from converting import build
from slow import slow_but
from tiny_model import TinyModel, write_gguf

from anespec.system.errors import StorageError

SUPPORT = Path(__file__).resolve().parents[1] / "support"
MODEL = TinyModel(d=64, head_dim=16, ff=256, layers=2, vocabulary=64)

RUN_OUT_OF_ROOM = """
import json, resource, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from converting import build

from anespec.system.errors import StorageError

place = Path(sys.argv[3])
outcomes = {}
for limit in map(int, sys.argv[4:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        build(Path(sys.argv[2]), place / "m.anespec", topology=(1, 1))
        outcomes[limit] = "none"
    except StorageError as error:
        outcomes[limit] = str(error)
    except Exception as error:
        outcomes[limit] = f"escaped: {error!r}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    outcomes[limit] += "".join(f" left: {path.name}" for path in place.iterdir() if path.name != "m.anespec")
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("source") / "tiny.gguf", MODEL)


@pytest.mark.slow
def test_the_system_refuses_a_file_s_growth(gguf: Path, tmp_path: Path) -> None:
    """A real limit, met by the GGUF writer, by numpy's, by the weight file's, and by none."""
    limits = (100, 5_000, 10_000, 40_000, 100_000_000)
    run = subprocess.run(
        [sys.executable, "-c", RUN_OUT_OF_ROOM, str(SUPPORT), str(gguf), str(tmp_path), *map(str, limits)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    *refused, allowed = json.loads(run.stdout.splitlines()[-1]).values()
    assert allowed == "none"
    for outcome in refused:
        assert outcome.endswith("the disk is full; free some space and run the command again"), outcome
    assert any("layer_00.mlpackage" in outcome for outcome in refused), "the weight file met none"


def failing(real: Callable[..., Any], after: int) -> Callable[..., Any]:
    """`real` that finds the disk full from its call number `after` on."""
    calls = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    return call


@pytest.mark.fast_only("os.mkdir-1")
@pytest.mark.parametrize("after", slow_but([1, 2], 1))
@pytest.mark.parametrize(
    "place",
    [
        "os.mkdir",
        "os.rename",
        "os.replace",
        "os.fsync",
        "gguf.GGUFWriter.write_ti_data_to_file",
        "anespec.convert.build.write_package",
        "anespec.system.safe_files.Folder.create",
        "anespec.convert.package.WeightFile.content",
    ],
)
def test_no_space_at_any_step(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, after: int
) -> None:
    module, _, name = place.rpartition(".")
    owner = __import__(module.split(".")[0])
    for needed in ("anespec.convert.pipeline", "anespec.convert.build"):
        __import__(needed)
    for part in module.split(".")[1:]:
        owner = getattr(owner, part)
    once = place.startswith("gguf.")
    with monkeypatch.context() as patched, pytest.raises(StorageError, match="the disk is full"):
        patched.setattr(owner, name, failing(getattr(owner, name), 1 if once else after))
        build(gguf, tmp_path / "m.anespec", topology=(1, 1))
    assert not list(tmp_path.iterdir())
    build(gguf, tmp_path / "m.anespec", topology=(1, 1))


def test_an_error_of_ours_is_not_called_a_full_disk(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anespec.convert.build as build_module

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(build_module, "write_package", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        build(gguf, tmp_path / "m.anespec")
    assert not list(tmp_path.iterdir())
