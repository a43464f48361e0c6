"""A prompt that has the model fill a gap in a text, as llama-server writes it for `/infill`.

    [repository] name  ([file] name, text)…  [file] name  [prefix] before, begun  [suffix] after  [middle]

https://github.com/ggml-org/llama.cpp/tree/master/tools/server
"""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.manifests.errors import RequestError
from anespec.runtime.text.fitting import require_fitting
from anespec.runtime.text.special_tokens import InfillIds
from anespec.runtime.text.tokenizer import Tokenizer

MOST_AROUND = 2048
"""Tokens before and after the gap, three times as many before it; at most half of the context."""

REPOSITORY, FILE = "myproject\n", "filename\n"
"""What they are called, since nobody says."""

SNIPPET = "\n\n--- snippet ---\n\n"
"""What parts files for a model that has no token for that."""

MARKS = 4
"""Tokens of a prompt's beginning and around the gap."""

SPARE = 16
"""Tokens that are encoded beyond those that are taken: the first ones of a text that is cut may differ."""


@dataclass(frozen=True)
class Extra:
    """A file beside the one that has the gap."""

    name: str
    text: str


@dataclass(frozen=True)
class Gap:
    """What is before a gap and after it, how what fills it is `begun`, and other files, the nearest last."""

    before: str
    after: str
    begun: str = ""
    extras: Sequence[Extra] = ()


def infill_prompt(tokenizer: Tokenizer, gap: Gap, context: int, answer: int) -> list[int]:
    """The prompt's ids, of texts that are cut to what fits a `context` of tokens, `answer` of them new.

    Raises:
        RequestError: the model has no tokens for that, a text is no Unicode, or what is begun cannot fit.
    """
    ids = tokenizer.infill_ids
    if ids is None:
        raise RequestError("this model's vocabulary has no tokens to fill a gap; send a plain prompt")
    around = min(MOST_AROUND, context // 2)
    require_fitting(gap.begun, tokenizer, context)
    begun = tokenizer.encode(gap.begun, add_special=False)
    after = _encoded(tokenizer, gap.after, around)[: max(0, around // 4 - 2 - len(begun))]
    before = _last(tokenizer, gap.before, 3 * (around // 4))
    extras = _extras(tokenizer, ids, gap.extras, max(0, context - around - 2 * answer - MARKS))
    first = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
    return [*extras, *first, ids.prefix, *before, *begun, ids.suffix, *after, ids.middle]


def _extras(tokenizer: Tokenizer, ids: InfillIds, extras: Sequence[Extra], most: int) -> list[int]:
    """The last tokens of the other files; no more of them is encoded than is taken."""
    found = [] if ids.file is None else [ids.file, *_encoded(tokenizer, FILE, most)]
    for extra in reversed(extras):
        if len(found) >= most:
            break
        name = SNIPPET if ids.file is None else f"{extra.name}\n"
        head = [] if ids.file is None else [ids.file]
        found = [*head, *_encoded(tokenizer, name, most), *_last(tokenizer, extra.text, most), *found]
    else:
        if ids.repository is not None:
            found = [ids.repository, *_encoded(tokenizer, REPOSITORY, most), *found]
    return found[len(found) - most :] if len(found) > most else found


def _encoded(tokenizer: Tokenizer, text: str, most: int) -> list[int]:
    """A text's first tokens, of which `most` are taken."""
    return tokenizer.encode(text[: (most + SPARE) * tokenizer.longest_token], add_special=False)


def _last(tokenizer: Tokenizer, text: str, most: int) -> list[int]:
    """A text's last tokens, at most so many."""
    ids = tokenizer.encode(text[-(most + SPARE) * tokenizer.longest_token :], add_special=False)
    return ids[max(0, len(ids) - most) :]
