"""Write one MIL program as an .mlpackage."""

import contextlib
import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from anespec.convert.graph.builder import ct
from anespec.convert.graph.shards import ShardProgram
from anespec.manifests.errors import StorageError

DISK_FULL = "the disk is full; free some space and run the command again"

FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

NATIVE_WRITER = "[MIL FileWriter]"
"""How the messages of coremltools' weight writer begin; it tells nothing of what the system said."""


def write_package(shard: ShardProgram, path: Path) -> None:
    """Write `shard` to `path` (a folder ending in .mlpackage); nothing stands there on failure.

    The graph is written as it was built: no coremltools pass runs, for the builder already emits
    the operations that are wanted.

    Raises:
        StorageError: the disk is full or refuses.
    """
    partial = path.with_name(f".{path.stem}.partial.mlpackage")
    shutil.rmtree(partial, ignore_errors=True)
    with storage_errors(path), _scratch_beside(path), _quiet_progress():
        try:
            model = ct.convert(
                shard.program,
                convert_to="mlprogram",
                minimum_deployment_target=ct.target.iOS18,
                inputs=shard.inputs,
                outputs=shard.outputs,
                pass_pipeline=ct.PassPipeline.EMPTY,
                skip_model_load=True,
            )
            model.save(str(partial))
            shutil.rmtree(path, ignore_errors=True)
            partial.rename(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what a file system refuses, also in coremltools' native writer, into a StorageError."""
    try:
        yield
    except OSError as error:
        # numpy reports a short write without an error number.
        if error.errno is None or error.errno in FULL_DISK_ERRORS:
            raise StorageError(f"{path}: {DISK_FULL}") from error
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
    except RuntimeError as error:
        # The free space says nothing here: what filled the disk may be removed by now.
        if not str(error).startswith(NATIVE_WRITER):
            raise
        raise StorageError(f"{path}: {DISK_FULL}") from error


@contextlib.contextmanager
def _scratch_beside(path: Path) -> Iterator[None]:
    """Let coremltools put its temporary copy on the artifact's own disk, and remove it whatever happens.

    coremltools asks `tempfile` for a folder and keeps it until the interpreter ends.
    """
    scratch = path.with_name(f".{path.stem}.scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    before = tempfile.tempdir
    tempfile.tempdir = os.fspath(scratch)
    try:
        yield
    finally:
        tempfile.tempdir = before
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _quiet_progress() -> Iterator[None]:
    """Silence coremltools' own progress bars and notes; ours show the run."""
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with Path(os.devnull).open("w") as sink, contextlib.redirect_stderr(sink):
            yield
    finally:
        logger.setLevel(level)
