"""Grammars over a model's vocabulary, which llguidance follows byte by byte.

Why a grammar's text is the same with and without speculation: what is allowed, what is forced and whether the
output is finished depend on the grammar and the tokens before alone. Forced tokens are queued when the first
of them is due and taken in that order, however many of them a pass runs; nothing is sampled in their place.
"""

import json
import re
import subprocess
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic, thread_time
from typing import Protocol, TypeVar

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from anespec.runtime.sampling import grammar_check
from anespec.runtime.sampling.parameters import Grammar, GrammarKind
from anespec.system.child_python import NEUTRAL_FOLDER, child_command, child_environment
from anespec.system.errors import AnespecError, GrammarError
from anespec.system.formatting import LONGEST_REASON, printable

# Limit the time of following a grammar.
#
# Masks and parsing happen between two passes, which every sequence waits for. A grammar that a text matches
# in very many ways makes them take longer with every token: with llguidance's own limits seconds for one. So
# the processor time of an output's grammar is counted, and an output that takes too much is ended. Checking
# drafts is not counted, since an answer must not depend on them; it is skipped if the grammar is slow. The
# time of all of a tenant's outputs beyond the usual is also counted together: otherwise a tenant could delay
# all others by sending one such grammar after another.
#
# Measured: JSON, 128 tools and a grammar of C take 0.1 to 3 ms a token, their first masks up to 90 ms. Of `s:
# s s s | s s | "-" | "--"` the ninth long token took 7 s, and 22 s went into the text; now it is ended after
# 0.7 s, and other requests wait for at most 0.4 s at once.

T = TypeVar("T")

ALLOWANCE = 0.5
"""Seconds that an output's grammar may take beyond those of its tokens; the first masks take longest."""

PER_TOKEN = 0.02
"""Seconds that each token gives back of them."""

SLOW = 0.005
"""Seconds for a token from which on no draft is checked: its tokens would take several times that."""


BURST = 1.0
"""Seconds that a tenant's tokens may take beyond PER_TOKEN each; usual ones take nothing beyond it."""

SHARE = 0.1
"""Seconds of them that come back in a second."""


@dataclass
class OwnerBudget:
    """The seconds that a tenant's grammars may take beyond the usual; for one thread at a time."""

    left: float = BURST
    counted: float = 0.0

    def draw(self, seconds: float) -> bool:
        """Take so many; whether there were any left."""
        now = monotonic()
        had = min(BURST, self.left + SHARE * (now - self.counted))
        self.left, self.counted = had - seconds, now
        return had > 0.0


@dataclass
class GrammarEffort:
    """The seconds that are left, and those of the present token and of the one before.

    Forks draw on one `budget`; an output that wants more of it than there is, is given up.
    """

    left: float = ALLOWANCE
    now: float = 0.0
    before: float = 0.0
    budget: OwnerBudget = field(default_factory=OwnerBudget)

    def timed(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, and count its time."""
        began = thread_time()
        try:
            return call()
        finally:
            took = thread_time() - began
            beyond = max(0.0, self.now + took - PER_TOKEN) - max(0.0, self.now - PER_TOKEN)
            self.now += took
            self.left -= took
            if beyond and not self.budget.draw(beyond):
                self.left = min(self.left, -beyond)

    def next_token(self) -> None:
        """Note that a token was taken."""
        self.before, self.now = self.now, 0.0
        self.left = min(ALLOWANCE, self.left + PER_TOKEN)

    @property
    def is_slow(self) -> bool:
        """Whether the last tokens took so long that checking drafts does not pay."""
        return max(self.before, self.now) > SLOW

    @property
    def is_spent(self) -> bool:
        """Whether it took too much time."""
        return self.left < 0.0

    def fork(self) -> "GrammarEffort":
        """A copy."""
        return replace(self)


MOST_CHARACTERS = 1 << 18
"""Of a grammar's text."""

_SECONDS = 2
_MEMORY = 2 << 30
_MOST_KEPT = 32
"""Prepared grammars of a tenant."""
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")


class GrammarTokenizer(Protocol):
    """The methods of a tokenizer that a grammar needs."""

    @property
    def eos_id(self) -> int | None: ...

    @property
    def end_ids(self) -> frozenset[int]: ...

    @property
    def vocabulary_size(self) -> int: ...

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False, continues: bool = False
    ) -> list[int]: ...

    def token_bytes(self, id: int) -> bytes: ...

    def piece(self, id: int, *, skip_special: bool) -> bytes: ...


@dataclass
class _Owner:
    """The prepared grammars of a tenant, the last used last, and the time that its grammars may take."""

    prepared: OrderedDict[Grammar, LLMatcher] = field(default_factory=OrderedDict)
    budget: OwnerBudget = field(default_factory=OwnerBudget)


class GrammarTokens:
    """A vocabulary as grammars see it. Made once per model; safe to use from several threads."""

    def __init__(self, tokenizer: GrammarTokenizer, vocabulary: int) -> None:
        """`vocabulary`: how many logits a row has; ids that the tokenizer does not know are never allowed."""
        self.vocabulary = vocabulary
        self.end_ids = frozenset(id for id in tokenizer.end_ids if id < vocabulary)
        words = _Words(tokenizer, vocabulary, self.end_ids)
        self.native = LLTokenizer(TokenizerWrapper(words), eos_token=words.ends)
        self._tenants: defaultdict[str, _Owner] = defaultdict(_Owner)
        self._lock = threading.Lock()

    def follow(self, grammar: Grammar, tenant: str = "") -> "GrammarState":
        """The beginning of an output that matches `grammar`.

        The last few grammars are kept prepared.

        They are kept for their tenant alone, as many of each: preparing one takes so long that its time would
        reveal another tenant's grammars.

        Raises:
            GrammarError: the grammar is not valid, or takes too much to prepare.
        """
        with self._lock:
            own = self._tenants[tenant]
            matcher = own.prepared.get(grammar)
            if matcher is not None:
                own.prepared.move_to_end(grammar)
        if matcher is None:
            matcher = self._prepare(grammar)
            with self._lock:
                own.prepared[grammar] = matcher
                if len(own.prepared) > _MOST_KEPT:
                    own.prepared.popitem(last=False)
        return GrammarState(self, matcher.deep_copy(), effort=GrammarEffort(budget=own.budget))

    def _prepare(self, grammar: Grammar) -> LLMatcher:
        native = _checked(grammar)
        matcher = LLMatcher(self.native, native, log_level=0, limits=grammar_check.parser_limits())
        if matcher.is_error():
            raise GrammarError(_complaint(grammar, matcher.get_error()))
        return matcher


class GrammarState:
    """The state of an output in its grammar."""

    def __init__(
        self,
        tokens: GrammarTokens,
        matcher: LLMatcher,
        forced: tuple[int, ...] | None = None,
        effort: GrammarEffort | None = None,
    ) -> None:
        self._tokens = tokens
        self._matcher = matcher
        self._forced = forced
        self._effort = effort or GrammarEffort()
        self._allowed: NDArray[np.bool_] | None = None

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must come next, as the tokenizer writes their text.

        Only as far as no continuation could be written in other tokens.
        """
        if self._forced is None:
            self._require_sound()
            found = () if self._matcher.is_stopped() else self._timed(self._matcher.compute_ff_tokens)
            last = next((i for i, token in enumerate(found) if token in self._tokens.end_ids), len(found))
            self._forced = tuple(found[:last])
        return self._forced

    def allowed(self) -> NDArray[np.bool_]:
        """Return the tokens that are allowed next [vocabulary]."""
        if self._allowed is None:
            bits = np.frombuffer(self._timed(self._matcher.compute_bitmask), dtype=np.uint8)
            vocabulary = self._tokens.vocabulary
            self._allowed = np.unpackbits(bits, count=vocabulary, bitorder="little").view(np.bool_)
        return self._allowed

    @property
    def finished(self) -> bool:
        """Whether only an end is allowed next."""
        if self.forced():
            return False
        if self._matcher.is_stopped():
            return True
        if not self._timed(self._matcher.is_accepting):
            return False
        allowed = self.allowed()
        return int(np.count_nonzero(allowed)) == sum(int(allowed[id]) for id in self._tokens.end_ids)

    def allows_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many leading ones of `tokens` are allowed, or fewer if checking takes long.

        The state does not change.
        """
        forced = self.forced()
        agreed = next(
            (i for i, (token, due) in enumerate(zip(tokens, forced, strict=False)) if token != due),
            len(tokens),
        )
        if self._effort.is_slow:
            return min(agreed, len(forced))
        return min(agreed, self._matcher.validate_tokens(list(tokens)))

    def accept(self, token: int) -> None:
        """Note that `token` is part of the output.

        Raises:
            AnespecError: the grammar does not allow it, or takes too much to be followed any further.
        """
        due = self.forced()
        self._timed(lambda: self._matcher.consume_token(token))
        self._effort.next_token()
        self._forced = due[1:] if len(due) > 1 and due[0] == token else None
        self._allowed = None

    def fork(self) -> "GrammarState":
        """A copy with its own state."""
        return GrammarState(self._tokens, self._matcher.deep_copy(), self._forced, self._effort.fork())

    def _timed(self, call: Callable[[], T]) -> T:
        """Return the result of native code; raise AnespecError if the output cannot be followed any
        further."""
        found = self._effort.timed(call)
        self._require_sound()
        if self._effort.is_spent:
            raise AnespecError(
                "the output cannot follow its grammar any further: it takes too long, as where one text "
                "matches in very many ways; make it smaller or less ambiguous"
            )
        return found

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            reason = printable(self._matcher.get_error().split("\n")[0], LONGEST_REASON)
            raise AnespecError(f"the output cannot follow its grammar any further: {reason}")


class _Words:
    """The tokens as bytes, as llguidance reads them: what a text cannot have begins with the byte 0xFF."""

    bos_token_id = None

    def __init__(self, tokenizer: GrammarTokenizer, vocabulary: int, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        known = range(min(vocabulary, tokenizer.vocabulary_size))
        words = [tokenizer.token_bytes(id) for id in known]
        self.special_token_ids = [
            id for id in known if not words[id] and tokenizer.piece(id, skip_special=False)
        ]
        for id in self.special_token_ids:
            words[id] = b"\xff" + tokenizer.piece(id, skip_special=False)
        words += [b""] * (vocabulary - len(words))
        self.ends = sorted(end_ids, key=lambda id: (id != tokenizer.eos_id, id))
        if not self.ends:
            # llguidance wants an end; this one has no logit, so that it is never taken.
            self.ends = [vocabulary]
            self.special_token_ids.append(vocabulary)
            words.append(b"\xff<end>")
        self.tokens = words
        self.eos_token_id = self.ends[0]

    def __call__(self, text: bytes | str) -> list[int]:
        """The tokens of text that goes on from text before it."""
        written = text.decode() if isinstance(text, bytes) else text
        return self._tokenizer.encode(written, add_special=False, continues=True)


def _checked(grammar: Grammar) -> str:
    """The grammar as llguidance takes it, having been tried where it can do no harm."""
    if grammar.characters > MOST_CHARACTERS:
        raise GrammarError(
            f"the grammar has {grammar.characters} characters; the most are {MOST_CHARACTERS}: shorten it"
        )
    if grammar.kind is GrammarKind.JSON and not grammar.frame:
        return grammar_check.native_grammar(grammar)
    command = [*child_command(grammar_check.__name__), str(_SECONDS), str(_MEMORY)]
    try:
        outcome = subprocess.run(
            command,
            input=grammar.model_dump_json().encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=NEUTRAL_FOLDER,
            env=child_environment(),
            timeout=2 * _SECONDS,
            start_new_session=True,
            check=True,
        )
        answer = json.loads(outcome.stdout)
    except (subprocess.SubprocessError, ValueError):
        raise GrammarError(
            f"the grammar takes more than {_SECONDS} s or {_MEMORY >> 30} GB to prepare, or nests too "
            "deeply; make it smaller"
        ) from None
    except OSError as error:
        raise AnespecError(
            f"the process that tries a grammar cannot be started ({error.strerror})"
        ) from error
    if "wrong" in answer:
        raise GrammarError(_complaint(grammar, answer["wrong"]))
    return str(answer["native"])


def _complaint(grammar: Grammar, error: str) -> str:
    """Return llguidance's error on a grammar, as one sentence."""
    lines = error.strip().splitlines() or ["no reason was given"]
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    place = _PLACE.match(reason)
    if place is not None:
        reason = reason[place.end() :]
        if grammar.kind is not GrammarKind.REGEX:
            reason = f"line {place[1]}, column {place[2]}: {reason}"
    kind = {GrammarKind.REGEX: "regex", GrammarKind.JSON_SCHEMA: "JSON schema"}.get(grammar.kind, "grammar")
    return f"the {kind} is not valid: {printable(reason.strip(), LONGEST_REASON)}"
