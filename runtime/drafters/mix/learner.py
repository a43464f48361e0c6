"""Learn finished requests into a tenant's memory image; this implements Learner for mix."""

from collections.abc import Iterator

import numpy as np

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.memory.learner import ALIGNMENT, MemoryFacts
from anespec.runtime.drafters.mix import LEARNER, LEARNER_VERSION
from anespec.runtime.drafters.mix.contexts import mixed
from anespec.runtime.drafters.mix.layout import (
    FIRST_FOLDED,
    FIXED_BYTES,
    FOLDED_ROOM,
    HEADER,
    NEXT_FOLDED,
    NODE_BYTES,
    RATE,
    REQUESTS,
    TAKEN,
    TOKENS,
    Longs,
    Octets,
    Words,
    rows_within,
    view_image,
)
from anespec.runtime.drafters.mix.nodes import WORD_COLUMNS, word_rows
from anespec.runtime.drafters.mix.scorer import fresh_rates, fresh_weights
from anespec.runtime.drafters.mix.state import STATE
from anespec.runtime.drafters.mix.walk import fold_text
from anespec.system.errors import RequestError

MIN_ROWS = 1024
"""The nodes of the smallest memory: enough for about one answer."""

MAX_COUNT = 1 << 53
"""The largest valid count in an image's header."""

STEP_TOKENS = 256
"""The tokens that are learnt in one step, which takes about a millisecond."""


@compiled_lean("int64(int32[::1], int64, int64[::1])")
def _known_length(text: Words, answer: int, header: Longs) -> int:
    """Return the length of the text's longest beginning that was learnt lately.

    Also record this text and its prompt as learnt. A conversation is sent again with every turn, and each of
    its tokens must be learnt only once.
    """
    known = 0
    value = 0
    for at in range(len(text)):
        value = mixed(value, text[at])
        for place in range(FOLDED_ROOM):
            if header[FIRST_FOLDED + 2 * place + 1] == at + 1 and header[FIRST_FOLDED + 2 * place] == value:
                known = at + 1
        if at + 1 == answer or at + 1 == len(text):
            place = header[NEXT_FOLDED] % FOLDED_ROOM
            header[FIRST_FOLDED + 2 * place] = value
            header[FIRST_FOLDED + 2 * place + 1] = at + 1
            header[NEXT_FOLDED] = place + 1
    return known


class MixLearner:
    """The learner of mix, and of auto, which is built on it, for one vocabulary's traits."""

    name = LEARNER
    version = LEARNER_VERSION

    def __init__(self, traits: Words) -> None:
        """Take the traits of the vocabulary's tokens; see traits.py."""
        self._traits = traits

    def fresh(self, size: int) -> Octets:
        """Return an empty image of at most `size` bytes.

        Raises:
            RequestError: `size` is too small for any memory.
        """
        rows = rows_within(size)
        if rows < MIN_ROWS:
            least = FIXED_BYTES + MIN_ROWS * NODE_BYTES
            raise RequestError(f"a draft memory of {size} bytes is too small; give it at least {least}")
        # Pages take no memory before they are written.
        room = np.zeros(FIXED_BYTES + rows * NODE_BYTES + ALIGNMENT, np.uint8)
        skipped = -room.ctypes.data % ALIGNMENT
        image = room[skipped : skipped + FIXED_BYTES + rows * NODE_BYTES]
        parts = view_image(image)
        fresh_rates(parts.rates)
        fresh_weights(parts.weights)
        return image

    def fold(self, image: Octets, text: Words, answer: int) -> Iterator[None]:
        """Learn a finished request in place, without the beginning that it shares with one learnt lately."""
        parts = view_image(image)
        text = np.ascontiguousarray(text, np.int32)
        known = _known_length(text, answer, parts.header)
        if known == len(text):
            return
        words = np.zeros((word_rows(len(text)), WORD_COLUMNS), np.int32)
        state = np.zeros(STATE, np.int64)
        parts.header[REQUESTS] += 1
        parts.header[TOKENS] += len(text) - known
        for first in range(0, len(text), STEP_TOKENS):
            fold_text(
                text,
                first,
                min(first + STEP_TOKENS, len(text)),
                known,
                answer,
                state,
                words,
                parts,
                self._traits,
            )
            yield

    def weights(self, image: Octets) -> Octets:
        """Return the parts that change at every pass: the weights and the measured rates."""
        return image[HEADER * 8 : FIXED_BYTES]

    def is_sound(self, image: Octets) -> bool:
        """Return whether the parts that change at every pass are finite, and rates and counts are valid.

        Nodes may have any values: they are replaced with time.
        """
        parts = view_image(image)
        counts, rates = parts.header[:FIRST_FOLDED], parts.rates[:, RATE]
        return bool(
            all(np.isfinite(each).all() for each in (parts.rates, parts.weights, parts.squares, parts.biases))
            and 0 <= rates.min() <= rates.max() <= 1
            and parts.squares.min() >= 0
            and 0 <= counts.min() <= counts.max() <= MAX_COUNT
        )

    def facts(self, image: Octets) -> MemoryFacts:
        """Return the facts about the content of an image."""
        parts = view_image(image)
        header = parts.header
        return MemoryFacts(int(header[TAKEN]), len(parts.nodes), int(header[REQUESTS]), int(header[TOKENS]))
