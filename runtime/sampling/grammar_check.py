"""Try a grammar in a process of its own (`python -m`), before the main process uses it.

Native code prepares a grammar. A small text can make this code run for hours or overflow its stack, and the
process could neither stop nor survive that. So a grammar is first prepared here, with little stack, time and
memory. The process reads a Grammar as JSON from standard input, and writes an object: `wrong`, the error, or
`native`, the grammar in llguidance's form.
"""

import json
import re
import resource
import sys
import threading
from contextlib import suppress

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from anespec.runtime.sampling.json_schemas import enforceable
from anespec.runtime.sampling.parameters import Grammar, GrammarKind
from anespec.system.child_python import take_low_priority

STACK_BYTES = 1 << 19
"""The smallest stack that a thread has on any supported system."""

WHITE_SPACE = r"( |\n[ \t]{0,40})"
"""The white space that is allowed between two tokens of JSON: a limited indentation. Weak models would repeat
white space without end."""

NICENESS = 10
"""The niceness of the process that checks grammars: all requests wait for passes, so passes come first."""

TRIAL_TOKENS = 16
"""Tokens for which a grammar is followed on trial."""

MAX_SPECIAL_TOKENS = 1 << 20

_TOKEN = re.compile(r"<\[([0-9]{1,7})\]>")


def parser_limits() -> LLParserLimits:
    """Return the limits for preparing a grammar and for following it by one token.

    A mask of `step_max_items` takes 5 to 50 ms, and one of five times as many up to 0.8 s. JSON, 128 tools
    and a grammar of C need fewer than 500.
    """
    return LLParserLimits(
        max_items_in_row=1_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=10_000,
        max_lexer_states=100_000,
        max_grammar_size=500_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


def native_grammar(grammar: Grammar) -> str:
    """Return the grammar in llguidance's form; raise ValueError if it cannot be translated."""
    answer = _native_answer(grammar)
    if not grammar.frame:
        return answer
    inner = json.loads(answer)["grammars"][0] if answer.startswith("{") else {"lark_grammar": answer}
    return json.dumps({"grammars": [{"lark_grammar": grammar.frame}, {**inner, "name": "answer"}]})


def _native_answer(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.GBNF:
            return grammar_from("gbnf", grammar.text)
        case GrammarKind.LARK:
            return grammar_from("lark", grammar.text)
        case GrammarKind.REGEX:
            return grammar_from("regex", grammar.text)
        case GrammarKind.JSON_SCHEMA:
            return _json_grammar(grammar.text)
        case GrammarKind.JSON:
            return _json_grammar("{}")


def _json_grammar(text: str) -> str:
    try:
        schema = json.dumps(enforceable(json.loads(text)))
    except (ValueError, RecursionError):
        schema = text  # llguidance's error says what is wrong with it
    if not schema.lstrip().startswith("{"):
        # A schema may also be true or false, which take no settings.
        return grammar_from("json_schema", schema)
    return LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": WHITE_SPACE})


def main() -> None:
    """Try the grammar on standard input; the arguments limit the seconds of processor time and the memory."""
    seconds, memory = int(sys.argv[1]), int(sys.argv[2])
    take_low_priority(NICENESS)
    for kind, size in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
    ):
        # macOS refuses some limits; there the parent ends this process after its timeout.
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (size, size))
    grammar = Grammar.model_validate_json(sys.stdin.buffer.read())
    threading.stack_size(STACK_BYTES)
    attempt = threading.Thread(target=lambda: json.dump(_tried(grammar), sys.stdout))
    attempt.start()
    attempt.join()


def _tried(grammar: Grammar) -> dict[str, str]:
    try:
        native = native_grammar(grammar)
    except (ValueError, RecursionError) as error:
        return {"wrong": str(error)}
    vocabulary = _Bytes(_special_tokens(native))
    tokenizer = LLTokenizer(TokenizerWrapper(vocabulary))
    matcher = LLMatcher(tokenizer, native, log_level=0, limits=parser_limits())
    for step in range(TRIAL_TOKENS):
        if matcher.is_error():
            return {"wrong": matcher.get_error()}
        bits = matcher.compute_bitmask()
        ids = range(vocabulary.eos_token_id)
        allowed = next((id for id in ids if bits[id >> 3] >> (id & 7) & 1), None)
        if step == 0 and allowed is None and not matcher.is_accepting():
            return {"wrong": "no text matches this grammar"}
        if allowed is None or matcher.is_stopped():
            break
        matcher.consume_token(allowed)
    return {"native": native}


def _special_tokens(native: str) -> int:
    """Return the vocabulary size that the token ids in the grammar need."""
    return min(MAX_SPECIAL_TOKENS, max((int(id) + 1 for id in _TOKEN.findall(native)), default=0))


class _Bytes:
    """A vocabulary for llguidance: `special` special tokens, the 256 bytes, and an end token."""

    bos_token_id = None

    def __init__(self, special: int) -> None:
        self._special = special
        self.eos_token_id = special + 256
        self.special_token_ids = (self.eos_token_id,)
        self.tokens = (*[b""] * special, *(bytes([byte]) for byte in range(256)), b"\xff<end>")

    def __call__(self, text: bytes | str) -> list[int]:
        return [self._special + byte for byte in (text.encode() if isinstance(text, str) else text)]


if __name__ == "__main__":
    main()
