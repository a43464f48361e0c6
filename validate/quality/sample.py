"""Texts that people pass to be scored."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from anespec.manifests.errors import RequestError, StorageError
from anespec.manifests.safe_files import read_bounded
from anespec.runtime.text.tokenizer import Tokenizer

SPARE_TOKENS = 64
"""Tokens beyond those wanted that are cut from the text too, for the last ones depend on what follows."""

LARGEST_TEXT = 1 << 27
"""Bytes; a hundred times the texts that perplexity is measured on."""


@dataclass(frozen=True)
class SampleText:
    """A text file's name, content and hash over its bytes."""

    name: str
    sha256: str
    text: str

    @classmethod
    def read(cls, path: Path) -> "SampleText":
        """Read a UTF-8 file.

        Raises:
            StorageError: it cannot be read, or has more than LARGEST_TEXT bytes.
            RequestError: it is not UTF-8, or empty.
        """
        try:
            data = read_bounded(path, LARGEST_TEXT)
        except OSError as error:
            raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise RequestError(
                f"{path}: is not UTF-8 text (byte {error.start}); convert it to UTF-8 or pass another text"
            ) from None
        if not text:
            raise RequestError(f"{path}: is empty; pass a text of at least two tokens")
        return cls(path.name, hashlib.sha256(data).hexdigest(), text)

    def tokens(self, tokenizer: Tokenizer, limit: int) -> list[int]:
        """The text's tokens without BOS and EOS, up to a few more than `limit`.

        A text far longer than those is not looked at to its end.
        """
        characters = (limit + SPARE_TOKENS) * tokenizer.longest_token
        return tokenizer.encode(self.text[:characters], add_special=False)
