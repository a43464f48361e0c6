"""Restrict output to a grammar over a model's vocabulary; llguidance follows the grammar byte by byte.

The text is the same with and without speculation, for two reasons. The allowed tokens, the forced tokens and
the end of the output depend only on the grammar and the tokens before. And forced tokens are queued when the
first of them is due and committed in this order, however many of them a pass runs; none is sampled.
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
from anespec.system.errors import GRAMMAR_FAILED, AnespecError, GrammarError
from anespec.system.formatting import LONGEST_REASON, printable

# The time of following a grammar is limited.
#
# Masks are computed and tokens parsed between two passes, and every sequence waits for that. If a text
# matches a grammar in very many ways, this takes longer with every token: with llguidance's own limits
# seconds for one token. Native code cannot be interrupted, so grammar_check.parser_limits ends a call early.
# The processor time of each output's grammar is counted, and an output that takes too much is ended. Checking
# drafts is not counted, since an answer must not depend on drafts; drafts are not checked at all if the
# grammar is slow. The time of all outputs of a tenant beyond the usual time is also counted together.
# Otherwise a tenant could delay all others by sending one such grammar after another, or many at once. A
# grammar that was slow before is not even asked while its tenant's time is used up: with many outputs, one
# call for each of them would be a long delay.
#
# Measured: JSON, 128 tools and a grammar of C take 0.05 to 1.5 ms a token, also for the first mask. With 16
# outputs at a time of `s: s s s | s s | "-" | "--"`, other requests wait for at most 0.4 s at a time.

T = TypeVar("T")

ALLOWANCE_SECONDS = 0.5
"""Seconds that an output's grammar may take beyond TOKEN_SECONDS per token."""

TOKEN_SECONDS = 0.02
"""Seconds that each token adds again to what is left of the allowance."""

SLOW_TOKEN_SECONDS = 0.005
"""Seconds for a token from which on a grammar is slow: checking drafts would take several times that, and
what it takes beyond them is charged to the tenant."""

BURST_SECONDS = 0.2
"""Seconds that a tenant's tokens may take in total beyond SLOW_TOKEN_SECONDS each. Usual tokens take less."""

REFILL_RATE = 0.1
"""Seconds that are added again to a tenant's budget per second."""

_TOO_MANY_ITEMS = "Too many items"
"""What llguidance's error says if a text matches the grammar in more ways than its limits allow."""

_TOO_LONG = (
    f"{GRAMMAR_FAILED}: it takes too long, perhaps because a text matches it in very many ways; make the "
    "grammar smaller or less ambiguous"
)


@dataclass
class TenantBudget:
    """The seconds that a tenant's grammars may take beyond the usual time; for one thread at a time."""

    left: float = BURST_SECONDS
    counted: float = 0.0

    def draw(self, seconds: float = 0.0) -> None:
        """Subtract `seconds`."""
        now = monotonic()
        self.left = min(BURST_SECONDS, self.left + REFILL_RATE * (now - self.counted)) - seconds
        self.counted = now

    @property
    def is_spent(self) -> bool:
        """Whether no seconds are left now."""
        self.draw()
        return self.left <= 0.0


@dataclass
class GrammarPace:
    """Whether any output of a grammar had a slow token, and the budget of its tenant."""

    is_slow: bool = False
    budget: TenantBudget = field(default_factory=TenantBudget)


@dataclass
class GrammarEffort:
    """The seconds that an output's grammar has left, and the seconds of its current and its previous token.

    All outputs of a tenant's grammar share one `pace`.
    """

    left: float = ALLOWANCE_SECONDS
    now: float = 0.0
    before: float = 0.0
    pace: GrammarPace = field(default_factory=GrammarPace)

    def timed(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, and count its time.

        Raises:
            AnespecError: the output, or all of its tenant's, have taken too much time, before or with this.
        """
        if self.pace.is_slow and self.pace.budget.is_spent:
            raise AnespecError(_TOO_LONG)
        began = thread_time()
        found = call()
        took = thread_time() - began
        had, self.now = self.now, self.now + took
        self.left -= took
        if self.now > SLOW_TOKEN_SECONDS:
            self.pace.is_slow = True
            self.pace.budget.draw(self.now - max(had, SLOW_TOKEN_SECONDS))
            if self.left < 0.0 or self.pace.budget.is_spent:
                raise AnespecError(_TOO_LONG)
        return found

    def next_token(self) -> None:
        """Begin the count of the next token."""
        self.before, self.now = self.now, 0.0
        self.left = min(ALLOWANCE_SECONDS, self.left + TOKEN_SECONDS)

    @property
    def is_slow(self) -> bool:
        """Whether the last tokens took so long that checking drafts does not pay."""
        return max(self.before, self.now) > SLOW_TOKEN_SECONDS

    def fork(self) -> "GrammarEffort":
        """Return a copy with the same pace."""
        return replace(self)


MOST_CHARACTERS = 1 << 18
"""The most characters of a grammar."""

_CHECK_SECONDS = 2
"""Seconds of processor time for preparing a grammar."""

_LONGEST_CHECK_SECONDS = 120
"""Seconds after which the check ends in any case. Its priority is low, so on a busy machine it may wait long
for its processor time."""

_CHECK_MEMORY = 2 << 30
_MAX_PREPARED = 32
"""The most prepared grammars that are kept for a tenant."""
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


@dataclass(frozen=True)
class _Prepared:
    """The state of an empty output in a grammar, to be copied, and the pace of all outputs."""

    matcher: LLMatcher
    pace: GrammarPace


@dataclass
class _Tenant:
    """The prepared grammars of a tenant, the last used one last, and the time budget of its grammars."""

    prepared: OrderedDict[Grammar, _Prepared] = field(default_factory=OrderedDict)
    budget: TenantBudget = field(default_factory=TenantBudget)


class GrammarTokens:
    """A model's vocabulary in llguidance's form. Made once per model; safe to use from several threads."""

    def __init__(self, tokenizer: GrammarTokenizer, vocabulary: int) -> None:
        """Take the number of logits of a row; ids that the tokenizer does not have are never allowed."""
        self.vocabulary = vocabulary
        self.end_ids = frozenset(id for id in tokenizer.end_ids if id < vocabulary)
        words = _Words(tokenizer, vocabulary, self.end_ids)
        self.native = LLTokenizer(TokenizerWrapper(words), eos_token=words.ends)
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)
        self._lock = threading.Lock()

    def follow(self, grammar: Grammar, tenant: str = "") -> "GrammarState":
        """Return the state of an empty output that must match `grammar`.

        The last few prepared grammars are kept, for each tenant separately. Preparing one takes so long that
        its time would otherwise reveal which grammars other tenants use.

        Raises:
            GrammarError: the grammar is not valid, or takes too much time or memory to prepare.
        """
        with self._lock:
            own = self._tenants[tenant]
            prepared = own.prepared.get(grammar)
            if prepared is not None:
                own.prepared.move_to_end(grammar)
        if prepared is None:
            prepared = _Prepared(self._prepare(grammar), GrammarPace(budget=own.budget))
            with self._lock:
                own.prepared[grammar] = prepared
                if len(own.prepared) > _MAX_PREPARED:
                    own.prepared.popitem(last=False)
        return GrammarState(self, prepared.matcher.deep_copy(), effort=GrammarEffort(pace=prepared.pace))

    def _prepare(self, grammar: Grammar) -> LLMatcher:
        native = _checked(grammar)
        matcher = LLMatcher(self.native, native, log_level=0, limits=grammar_check.parser_limits())
        if not matcher.is_error():
            # The first mask takes longest, and its copies keep what it found: here no pass waits for it.
            matcher.compute_bitmask()
        if matcher.is_error():
            raise GrammarError(_error_sentence(grammar, matcher.get_error()))
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
        """Return the tokens that must come next: the tokenizer's encoding of the forced text.

        They end where another continuation of the text could change its encoding.
        """
        if self._forced is None:
            self._require_sound()
            found = () if self._matcher.is_stopped() else self._timed(self._matcher.compute_ff_tokens)
            last = next((i for i, token in enumerate(found) if token in self._tokens.end_ids), len(found))
            self._forced = tuple(found[:last])
        return self._forced

    def allowed(self) -> NDArray[np.bool_]:
        """Return which tokens are allowed next, as a mask [vocabulary]."""
        if self._allowed is None:
            bits = np.frombuffer(self._timed(self._matcher.compute_bitmask), dtype=np.uint8)
            vocabulary = self._tokens.vocabulary
            self._allowed = np.unpackbits(bits, count=vocabulary, bitorder="little").view(np.bool_)
        return self._allowed

    @property
    def finished(self) -> bool:
        """Whether only an end token is allowed next."""
        if self.forced():
            return False
        if self._matcher.is_stopped():
            return True
        if not self._timed(self._matcher.is_accepting):
            return False
        allowed = self.allowed()
        return int(np.count_nonzero(allowed)) == sum(int(allowed[id]) for id in self._tokens.end_ids)

    def allows_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of the first `tokens` are allowed next, or fewer if checking takes long.

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
        """Add `token` to the output.

        Raises:
            AnespecError: the grammar does not allow the token, or has taken too much time.
        """
        due = self.forced()
        self._timed(lambda: self._matcher.consume_token(token))
        self._effort.next_token()
        self._forced = due[1:] if len(due) > 1 and due[0] == token else None
        self._allowed = None

    def fork(self) -> "GrammarState":
        """Return an independent copy of the state; its time counts towards the same tenant."""
        return GrammarState(self._tokens, self._matcher.deep_copy(), self._forced, self._effort.fork())

    def _timed(self, call: Callable[[], T]) -> T:
        """Return the result of native code; raise AnespecError if it fails or has taken too much time."""
        found = self._effort.timed(call)
        self._require_sound()
        return found

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            error = self._matcher.get_error()
            if _TOO_MANY_ITEMS in error:
                raise AnespecError(_TOO_LONG)
            reason = printable(error.split("\n")[0], LONGEST_REASON)
            raise AnespecError(f"{GRAMMAR_FAILED}: {reason}")


class _Words:
    """The tokens as bytes for llguidance; special tokens, which no text has, begin with the byte 0xFF."""

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
            # llguidance needs an end token; this one has no logit, so it is never sampled.
            self.ends = [vocabulary]
            self.special_token_ids.append(vocabulary)
            words.append(b"\xff<end>")
        self.tokens = words
        self.eos_token_id = self.ends[0]

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the tokens of a text that continues earlier text."""
        written = text.decode() if isinstance(text, bytes) else text
        return self._tokenizer.encode(written, add_special=False, continues=True)


def _checked(grammar: Grammar) -> str:
    """Return the grammar in llguidance's form, after it was tried in another process (see grammar_check)."""
    if grammar.characters > MOST_CHARACTERS:
        raise GrammarError(
            f"the grammar has {grammar.characters} characters, more than {MOST_CHARACTERS}; shorten it"
        )
    if grammar.kind is GrammarKind.JSON and not grammar.frame:
        return grammar_check.native_grammar(grammar)
    command = [*child_command(grammar_check.__name__), str(_CHECK_SECONDS), str(_CHECK_MEMORY)]
    try:
        outcome = subprocess.run(
            command,
            input=grammar.model_dump_json().encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=NEUTRAL_FOLDER,
            env=child_environment(),
            timeout=_LONGEST_CHECK_SECONDS,
            start_new_session=True,
            check=True,
        )
        answer = json.loads(outcome.stdout)
    except (subprocess.SubprocessError, ValueError):
        raise GrammarError(
            f"the grammar takes more than {_CHECK_SECONDS} s or {_CHECK_MEMORY >> 30} GB to prepare, or is "
            "nested too deeply; make it smaller"
        ) from None
    except OSError as error:
        raise AnespecError(
            f"the process that tries a grammar cannot be started ({error.strerror})"
        ) from error
    if "wrong" in answer:
        raise GrammarError(_error_sentence(grammar, answer["wrong"]))
    return str(answer["native"])


def _error_sentence(grammar: Grammar, error: str) -> str:
    """Return llguidance's error about a grammar as one sentence."""
    if _TOO_MANY_ITEMS in error:
        return "a text matches the grammar in too many ways; make it smaller or less ambiguous"
    lines = error.strip().splitlines() or ["no reason was given"]
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    place = _PLACE.match(reason)
    if place is not None:
        reason = reason[place.end() :]
        if grammar.kind is not GrammarKind.REGEX:
            reason = f"line {place[1]}, column {place[2]}: {reason}"
    kind = {GrammarKind.REGEX: "regex", GrammarKind.JSON_SCHEMA: "JSON schema"}.get(grammar.kind, "grammar")
    return f"the {kind} is not valid: {printable(reason.strip(), LONGEST_REASON)}"
