"""A short fuzz run, and proof that it would find what it looks for. `make fuzz` is the long one."""

import sys
from pathlib import Path
from random import Random

import planted_faults
import pytest
from campaign import Pursue, case_content, run
from cases import draw_case
from gguf_form import read_form
from seeds import seeds, shrunk

from anespec.convert.families import FAMILIES
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.runtime.text.tokenizer import Tokenizer

CASES = 2000


@pytest.mark.slow
def test_two_thousand_damaged_files_are_refused_in_a_sentence() -> None:
    result = run(CASES, seed=7)
    assert result.failures == []
    assert result.cases == CASES
    assert CASES // 50 < result.converted < CASES // 2, "the cases are all too good or all too bad"


@pytest.mark.fast_only(
    "bursting-0.2-MemoryError at planted_faults.py:bursting",
    "bug-0.2-IndexError at planted_faults.py:bug",
    "crash-0.2-the process died with -6",
)
@pytest.mark.parametrize(
    ("pursue", "seconds", "words"),
    [
        (planted_faults.bug, 0.2, "IndexError at planted_faults.py:bug"),
        (planted_faults.endless, 0.2, "takes longer than 0.2 s at planted_faults.py:endless"),
        (planted_faults.swallowing, 0.2, "takes longer than 0.2 s"),
        pytest.param(planted_faults.waiting, 0.2, "hangs", marks=pytest.mark.slow),
        # On a busy machine so much memory takes a while to be had.
        (planted_faults.greedy, 5.0, " MiB"),
        (planted_faults.bursting, 0.2, "MemoryError at planted_faults.py:bursting"),
        (planted_faults.crash, 0.2, "the process died with -6"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to its address space")
def test_what_must_not_happen_is_found_and_the_run_goes_on(
    pursue: Pursue, seconds: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = tmp_path / "waits"
    monkeypatch.setenv(planted_faults.WAITS, str(waits))

    looks = 0

    def clock() -> float:
        """No time passes until it was seen twice that a case waits, and then more than any may take."""
        nonlocal looks
        looks += waits.exists()
        return 1e6 if looks > 2 else 0.0

    result = run(30, pursue=pursue, case_seconds=seconds, clock=clock)
    assert [failure.case for failure in result.failures] == [planted_faults.BAD]
    assert words in result.failures[0].signature
    assert result.cases >= 9


@pytest.mark.slow
def test_a_case_is_the_same_every_time() -> None:
    assert case_content(3, 14) == case_content(3, 14)
    assert case_content(3, 14) != case_content(3, 15)
    assert case_content(3, 14) != case_content(4, 14)


def test_the_seeds_are_good_files_of_every_family_that_converts(tmp_path: Path) -> None:
    converting = [seed for seed in seeds() if seed.converts]
    architectures = set()
    for seed in converting:
        path = tmp_path / "seed.gguf"
        case = draw_case([seed], Random(0))
        header = seed.form.header()
        path.write_bytes(type(case)("", header, seed.form.data_bytes).content())
        with GGUFFile(path) as file:
            ConversionPlan(SourceModel(file), ConvertOptions())
            Tokenizer.from_gguf(file)
            architectures.add(file.text("general.architecture"))
    assert architectures <= set(FAMILIES)
    assert len(architectures) >= 15


def test_a_form_is_the_file_that_it_was_read_from(families: Path) -> None:
    for path in sorted(families.glob("*.gguf")):
        form = read_form(path)
        header = form.header()
        assert header == path.read_bytes()[: len(header)]
        assert len(header) + form.data_bytes == path.stat().st_size
        assert len(shrunk(form).header()) < len(header)
