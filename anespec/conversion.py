"""A GGUF opened for conversion: model, options and tokenizer are checked before anything is written."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.manifests.errors import Interrupted

if TYPE_CHECKING:
    from anespec.convert.options import ConvertOptions
    from anespec.convert.plan import ConversionPlan


@contextlib.contextmanager
def open_plan(gguf: Path, options: "ConvertOptions") -> "Iterator[ConversionPlan]":
    """Open a GGUF and plan its conversion; the file is open inside the block.

    Raises:
        MissingPackageError: coremltools is not installed.
        GGUFError: the file is malformed.
        UnsupportedModelError: the model or its tokenizer is none that is converted.
        RequestError: the options do not fit the model.
        StorageError: the file cannot be read.
    """
    from anespec.convert.plan import ConversionPlan
    from anespec.convert.source.model import SourceModel
    from anespec.manifests.gguf_file import GGUFFile
    from anespec.manifests.packages import require_package
    from anespec.runtime.text.tokenizer import Tokenizer

    # What builds shards loads it at once.
    require_package("coremltools", "a conversion")
    with GGUFFile(gguf) as file:
        plan = ConversionPlan(SourceModel(file), options)
        Tokenizer.from_gguf(file)
        yield plan


def stopped(interruption: KeyboardInterrupt) -> Interrupted:
    """Return the error to raise after an interrupted conversion, which may have reported the shards that it
    keeps."""
    return Interrupted(str(interruption) or "interrupted; run the same command again to go on")


def default_output(gguf: Path) -> Path:
    """Return the default path of a GGUF's artifact: NAME.anespec in the current folder."""
    return Path(f"{gguf.stem}.anespec")
