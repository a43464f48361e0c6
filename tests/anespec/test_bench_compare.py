"""`anespec bench compare`: what differs beyond the spread of the runs, and what is no report."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from commands import run


def case(prompt_class: str, number: int, plain: list[float], drafted: list[float]) -> dict[str, Any]:
    return {
        "group": prompt_class,
        "number": number,
        "length": 64,
        "prompt_tokens": 100,
        "without": {"tokens": 64, "tokens_per_pass": 1.0, "tokens_per_second": plain},
        "with": [{"way": "as they pay", "tokens": 64, "tokens_per_pass": 2.0, "tokens_per_second": drafted}],
    }


REPORT: dict[str, Any] = {
    "suite": "standard",
    "model": "m",
    "backend": "openvino",
    "threads": 2,
    "machine": {"machine": "one", "processors": 2, "load_before": 0.1},
    "cases": [
        case("code", 1, [10, 11, 12], [20, 22, 24]),
        case("code", 2, [10, 10, 10], [20, 20, 20]),
        case("prose", 1, [10, 11, 12], [11, 11, 11]),
        case("short", 1, [0.0], [0.0]),
    ],
}


def written(path: Path, report: Any) -> Path:
    path.write_text(json.dumps(report))
    return path


def scaled(speed: float, **changes: Any) -> dict[str, Any]:
    """REPORT with drafts so many times as fast in code."""
    report = copy.deepcopy(REPORT) | changes
    for each in report["cases"]:
        if each["group"] == "code":
            speeds = each["with"][0]["tokens_per_second"]
            each["with"][0]["tokens_per_second"] = [speed * value for value in speeds]
    return report


def rows(first: Any, second: Any, folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = run(
        "bench", "compare", written(folder / "a.json", first), written(folder / "b.json", second), "--json"
    )
    assert found.code == 0, found.err
    return {(each["group"], each["way"]): each for each in found.json["rows"]}  # type: ignore[index,union-attr]


def test_only_what_exceeds_the_spread_differs(tmp_path: Path) -> None:
    same = rows(REPORT, REPORT, tmp_path)
    assert {key[0] for key in same} == {"code", "prose"}, "what is too short to be timed is no row"
    assert not any(each["differs"] for each in same.values())
    slightly = rows(REPORT, scaled(1.05), tmp_path)["code", "as they pay"]
    assert slightly["ratio"] == pytest.approx(1.05) and not slightly["differs"]
    # The spread of the two cases is 20 % and none: 10 % as a geometric mean.
    slower = rows(REPORT, scaled(0.8), tmp_path)["code", "as they pay"]
    assert slower["differs"] and slower["ratio"] == pytest.approx(0.8) and slower["cases"] == 2
    assert slower["most"] == pytest.approx(0.8 * 1.2**0.5)
    assert not rows(REPORT, scaled(0.8), tmp_path)["code", "without drafts"]["differs"]


def test_conditions_that_differ_and_cases_of_one_alone_are_told(tmp_path: Path) -> None:
    other = scaled(2.0, threads=1, machine={"machine": "another", "processors": 2})
    other["cases"].pop(2)
    other["cases"][3 - 1]["prompt_tokens"] = 99
    found = run("bench", "compare", written(tmp_path / "a.json", REPORT), written(tmp_path / "b.json", other))
    assert found.code == 0, found.err
    err = " ".join(found.err.split())
    assert "threads differs: 2 and 1" in err and "machine differs: one and another" in err
    assert "backend" not in err
    assert "2 cases of one report alone, left out" in err
    assert "faster" in found.out and max(map(len, found.out.splitlines())) <= 80


def test_suites_are_compared_with_the_same_suite(tmp_path: Path) -> None:
    pld = {**copy.deepcopy(REPORT), "suite": "pld"}
    several = {"suites": [pld, {**scaled(3.0), "suite": "blocks"}]}
    found = rows(several, pld, tmp_path)
    assert {each["suite"] for each in found.values()} == {"pld"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no JSON", "is not JSON"),
        ("[]", "is no report of `anespec bench run --json` (suite is missing or wrong)"),
        (json.dumps({"suite": "pld", "model": "m", "cases": []}), "(cases is missing or wrong)"),
        (
            json.dumps({**REPORT, "cases": [{**REPORT["cases"][0], "number": "x"}]}),
            "(cases.0.number is missing",
        ),
        (json.dumps({**REPORT, "cases": [case("other", 1, [1.0], [1.0])]}), "have no timed prompt in common"),
        ("[" * 100_000, "is not JSON"),
        (json.dumps({**REPORT, "cases": [case("code", 1, [float("nan")], [1.0])]}), "missing or wrong"),
        (json.dumps({**REPORT, "cases": [case("code", 1, [1e300], [1.0])]}), "missing or wrong"),
        (json.dumps({**REPORT, "cases": [case("code", 1, [5e-324], [5e-324])]}), "no timed prompt in common"),
    ],
)
def test_what_is_no_report_is_named_in_a_sentence(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "b.json").write_text(content)
    found = run("bench", "compare", written(tmp_path / "a.json", REPORT), tmp_path / "b.json")
    assert found.code not in (0, 1)
    assert said in " ".join(found.err.split()), found.err
    assert "Traceback" not in found.err and found.out == ""


def test_a_missing_report_is_named(tmp_path: Path) -> None:
    found = run("bench", "compare", written(tmp_path / "a.json", REPORT), tmp_path / "none.json")
    assert found.code not in (0, 1) and "none.json" in found.err


def test_many_groups_are_compared_in_linear_time(tmp_path: Path) -> None:
    """A scan of all cases for every group took many seconds."""
    many = {**REPORT, "cases": [case(f"group {number}", 1, [1.0], [2.0]) for number in range(5_000)]}
    assert len(rows(many, many, tmp_path)) == 10_000
