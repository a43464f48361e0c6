"""A gap's prompt is llama-server's, and of long texts it has what is nearest to the gap."""

import copy

import pytest
from slow import slow_but

from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.runtime.server.llama.completion import Extra, Gap, infill_prompt
from anespec.runtime.text.special_tokens import InfillIds
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import PromptTooLongError, RequestError

PRE, SUF, MID, REP, SEP = range(10**6, 10**6 + 5)
GAP = Gap("def area(w, h):\n    ", "\n\nprint(area(2, 3))", "return")


def tokenizer(ids: InfillIds | None) -> Tokenizer:
    with GGUFFile(model_path()) as file:
        found = copy.copy(Tokenizer.from_gguf(file))
    found.infill_ids = ids
    return found


PLAIN = tokenizer(InfillIds(PRE, SUF, MID))
REPOSITORY = tokenizer(InfillIds(PRE, SUF, MID, REP, SEP))


def ids(text: str) -> list[int]:
    return PLAIN.encode(text, add_special=False)


def bos() -> list[int]:
    return [PLAIN.bos_id] if PLAIN.adds_bos and PLAIN.bos_id is not None else []


def test_what_is_around_the_gap_stands_before_it() -> None:
    around = [PRE, *ids(GAP.before), *ids("return"), SUF, *ids(GAP.after), MID]
    assert infill_prompt(PLAIN, GAP, 1024, 10) == [*bos(), *around]
    head = [REP, *ids("myproject\n"), SEP, *ids("filename\n")]
    assert infill_prompt(REPOSITORY, GAP, 1024, 10) == [*head, *bos(), *around]


def test_other_files_stand_before_that() -> None:
    gap = Gap("a", "b", extras=[Extra("x.py", "import y"), Extra("y.py", "pi = 3")])
    found = infill_prompt(REPOSITORY, gap, 1024, 10)
    files = [SEP, *ids("x.py\n"), *ids("import y"), SEP, *ids("y.py\n"), *ids("pi = 3")]
    head = [REP, *ids("myproject\n"), *files, SEP, *ids("filename\n")]
    assert found[: len(head)] == head
    snippets = infill_prompt(PLAIN, gap, 1024, 10)
    assert snippets[: len(ids("\n\n--- snippet ---\n\n"))] == ids("\n\n--- snippet ---\n\n")
    assert SEP not in snippets


@pytest.mark.parametrize("answer", slow_but([0, 10, 10**30], 10))
def test_what_is_too_long_is_cut_where_it_is_far_from_the_gap(answer: int) -> None:
    before, after = "".join(f"before {n} " for n in range(9_000)), "after " * 9_000
    gap = Gap(before, after, "begun", [Extra("n", "far " * 9_000)] * 30)
    for context in (32, 64, 512, 4096, 16384):
        found = infill_prompt(REPOSITORY, gap, context, answer)
        assert len(found) <= context
        assert found.count(PRE) == found.count(SUF) == found.count(MID) == 1
        short = infill_prompt(REPOSITORY, Gap(before, after), context, answer)
        taken = short[short.index(PRE) + 1 : short.index(SUF)]
        assert taken == ids(before)[-3 * (min(2048, context // 2) // 4) :]
        assert short[short.index(SUF) + 1 : -1] == ids(after)[: max(0, min(2048, context // 2) // 4 - 2)]


def test_a_model_that_knows_no_gaps_says_so() -> None:
    with pytest.raises(RequestError, match="no tokens to fill a gap"):
        infill_prompt(tokenizer(None), GAP, 1024, 10)
    with pytest.raises(PromptTooLongError):
        infill_prompt(PLAIN, Gap("", "", "begun " * 10**6), 512, 10)
