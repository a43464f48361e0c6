"""Tokens per pass on the first recorded sessions: a floor that changes of mix must not fall below."""

from itertools import islice
from pathlib import Path

import pytest

from anespec.gguf.container import GGUFFile
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.runtime.drafters.mix.learner import MixLearner
from anespec.runtime.drafters.mix.source import MixSource
from anespec.runtime.drafters.mix.traits import traits_of
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.validate.bench.replay import Replay, WholeBlocks
from anespec.validate.bench.traces import read_sessions, requests_of

SHARED = Path(__file__).parents[5] / "shared"
SESSIONS = 20
FLOOR = 1.53


def tokens_per_pass(tokenizer: Tokenizer) -> float:
    traits = traits_of(tokenizer)
    source = MixSource(traits, VocabularyMemory(MixLearner(traits), 8 << 20, "none"))
    run = Replay(source, WholeBlocks(4))
    for session in islice(read_sessions([SHARED / "replay/spec-bench/sessions.jsonl"]), SESSIONS):
        for request in requests_of(session, tokenizer):
            run.add(request)
    overall = run.result().overall
    return overall.tokens_per_pass


@pytest.mark.slow
def test_the_first_sessions_need_few_passes_and_the_same_ones_twice() -> None:
    vocabulary = SHARED / "tokenizers/qwen2.vocab.gguf"
    if not vocabulary.exists():
        pytest.skip("needs shared/ beside the repository")
    with GGUFFile(vocabulary) as file:
        tokenizer = Tokenizer.from_gguf(file)
    first = tokens_per_pass(tokenizer)
    assert first > FLOOR
    assert tokens_per_pass(tokenizer) == first
