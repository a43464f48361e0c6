"""What the self-test says of MLX: what further rows cost, and whether drafts change no bit."""

from pathlib import Path

import pytest
from stand_in import run_steps, said

from anespec.manifests.verdicts import Invariance
from anespec.runtime.backends import BACKENDS, MLX
from anespec.validate.selftest.records import Outcome


def test_rows_are_timed_and_drafts_are_judged(folder: Path) -> None:
    pytest.importorskip("mlx.core", reason="needs mlx (pip install 'anespec[mlx]')")
    records = run_steps(folder, "gpu", names=("1 row", "4 rows"))
    assert [time.rows for record in records for time in record.measured.times] == [1, 4]
    found = said(records, "gpu")
    assert found["1 row"][0].endswith(" ms a pass")
    assert found["4 rows"][0].endswith(" times one row")
    assert found["4 rows, with drafts"] == ["ok: bit-equal, so it may speculate"]
    _, judged = records
    verdict = judged.measured.exactness
    assert verdict is not None
    lost = tuple(
        each.model_copy(update={"unequal": 1}) if each.invariance is Invariance.NEIGHBOURS else each
        for each in verdict.invariances
    )
    measured = judged.measured.model_copy(
        update={"exactness": verdict.model_copy(update={"invariances": lost})}
    )
    planted = judged.model_copy(update={"measured": measured})
    assert said([planted], "gpu")["4 rows, with drafts"] == ["warn: not bit-equal (neighbours)"]


def test_without_mlx_the_step_says_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(BACKENDS[MLX]), "unavailable", lambda self: "the package mlx")
    (record,) = run_steps(folder, "gpu", names=("8 rows",))
    assert record.outcome is Outcome.NOT_HERE
    assert said([record], "gpu")["8 rows"] == ["not here: not here: it needs the package mlx"]
