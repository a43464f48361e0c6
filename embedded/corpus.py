"""Make the demo model's training data from Python's own standard library, and its vocabulary."""

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"

# Installed packages, tests, build output, and modules that are tables rather than programs.
LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib-dynload", "encodings", "pydoc_data"}
)
LEFT_OUT_FILES = frozenset({"html/entities.py", "lib2to3/pgen2/token.py", "this.py"})

# These files are never used for training. Their classes have similar methods, as a demonstration needs.
HELD_OUT = (
    "concurrent/futures/thread.py",
    "fractions.py",
    "graphlib.py",
    "ipaddress.py",
    "netrc.py",
    "queue.py",
    "shelve.py",
    "wave.py",
    "xml/sax/saxutils.py",
)


@dataclass(frozen=True)
class Document:
    """The text of a file; `name` is its path in the standard library."""

    name: str
    text: str


def standard_library() -> list[Document]:
    """Return the programs of the running Python's standard library, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    sources: list[Document] = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        generated = place.name.startswith("_sysconfigdata") or place.parts[0].startswith("config-")
        if generated or LEFT_OUT.intersection(place.parts) or place.as_posix() in LEFT_OUT_FILES:
            continue
        try:
            sources.append(Document(place.as_posix(), path.read_text("utf-8")))
        except UnicodeDecodeError:
            # A few old modules in another encoding are left out.
            continue
    return sources


def split(sources: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Divide documents into (training, held out)."""
    return (
        [source for source in sources if source.name not in HELD_OUT],
        [source for source in sources if source.name in HELD_OUT],
    )


def byte_level_bpe(model: models.BPE) -> Tokenizer:
    """Return a tokenizer with GPT-2's pre-tokenizer and byte-level alphabet, and the end-of-text token."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def train_tokenizer(sources: Sequence[Document], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE on `sources`; token 0 is the end of a text."""
    tokenizer = byte_level_bpe(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((source.text for source in sources), trainer)
    return tokenizer


def end_of_text(tokenizer: Tokenizer) -> int:
    """Return the id of the token that begins and ends a text."""
    token = tokenizer.token_to_id(END_OF_TEXT)
    if token is None:
        raise ValueError(f"the vocabulary lacks {END_OF_TEXT}")
    return token


def token_stream(sources: Sequence[Document], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the tokens of all files, int64 [tokens]; an end-of-text token precedes each file."""
    end = end_of_text(tokenizer)
    encodings = tokenizer.encode_batch([source.text for source in sources], add_special_tokens=False)
    return np.concatenate([np.array([end, *encoding.ids], dtype=np.int64) for encoding in encodings])


def windows(stream: NDArray[np.int64], starts: NDArray[np.int64], length: int, begin: int) -> torch.Tensor:
    """Return windows of the stream from `starts` on, int64 [len(starts), length + 1].

    The first token of every window is replaced by `begin`, with which prompts start too.
    """
    cut = stream[starts[:, None] + np.arange(length + 1)]
    cut[:, 0] = begin
    return torch.from_numpy(cut)


def random_windows(
    stream: NDArray[np.int64], count: int, length: int, begin: int, seed: tuple[int, int]
) -> torch.Tensor:
    """Return `count` windows at random positions; the same seed gives the same windows."""
    starts = np.random.default_rng(seed).integers(0, len(stream) - length, count)
    return windows(stream, starts, length, begin)


def consecutive_windows(stream: NDArray[np.int64], length: int, begin: int) -> torch.Tensor:
    """Return consecutive windows over the whole stream; an incomplete last one is dropped."""
    return windows(stream, np.arange(0, len(stream) - length, length), length, begin)
