"""Core ML's texts become what they mean and what to do."""

import re
import signal
from pathlib import Path

import pytest

from anespec.system.coreml_errors import (
    KNOWN_ERRORS,
    NOT_A_NUMBER,
    ended_by,
    error_sentence,
    known_error,
    no_answer,
)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("Failed to build the model execution plan with error code: -14.", "(-14)"),
        ("Error plan build: -14.", "(-14)"),
        ("failed to compile ANE model. Error=_ANECompiler : ANECCompile() FAILED (11)", "refused the shard"),
        ("status=0x1d : inference error", "(0x1d)"),
        ("Program load failure (0x20004)", "(0x20004)"),
        ("libc++abi: terminating due to uncaught exception: std::bad_cast", "RangeDim"),
        ("Killed: 9", "memory"),
        ("something new\nsecond line", "Core ML refused the shard: something new"),
        ("layer_1-14 is odd", "Core ML refused the shard: layer_1-14 is odd"),
        ("", "no message"),
        ("libc++abi: std::bad_cast\nAbort trap", "RangeDim"),
        (
            'NSLocalizedDescription = "The operation couldn\\U2019t be completed. No space left on device"',
            "disk",
        ),
        ('The file "m.mlmodelc" couldn\u2019t be opened because there is no such file.', "compile it again"),
    ],
)
def test_errors_become_sentences(message: str, sentence: str) -> None:
    assert sentence in error_sentence(message)


def test_every_known_error_has_a_meaning_a_mend_a_grade_and_a_source() -> None:
    for known in KNOWN_ERRORS:
        re.compile(known.sign)
        assert all((known.code, known.meaning, known.fix, known.grade, known.source))
        assert known.sentence == f"{known.meaning} ({known.code}); {known.fix}"
    assert len({known.code for known in KNOWN_ERRORS}) == len(KNOWN_ERRORS)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, "killed"),
        (signal.SIGSEGV, "crash"),
        (signal.SIGABRT, "crash"),
        (signal.SIGBUS, "crash"),
    ],
)
def test_what_ends_a_process_is_known(number: int, code: str) -> None:
    known = known_error(ended_by(number))
    assert known is not None
    assert known.code == code
    assert "signal 15" in ended_by(signal.SIGTERM)


def test_what_we_say_in_place_of_core_ml_is_known() -> None:
    for text, code in ((no_answer(600), "no answer"), (NOT_A_NUMBER, "not a number")):
        known = known_error(text)
        assert known is not None
        assert known.code == code


def test_what_a_new_compilation_may_mend_is_told_from_the_rest() -> None:
    stale = {known.code for known in KNOWN_ERRORS if known.stale}
    assert stale == {"-14", "0x20004", "unreadable"}
    assert {known.code for known in KNOWN_ERRORS if not known.lasting} == {
        "0x1d",
        "no space",
        "killed",
        "no answer",
    }


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "backends.md").read_text()
    for known in KNOWN_ERRORS:
        row = (known.code, known.meaning, known.fix, known.grade, known.source)
        assert f"| {' | '.join(row)} |" in page
