"""The one sentence on what an artifact may do: every combination of what the gates may have found."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from anespec.manifests.residency import PlanSource, ResidencyFile
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import (
    REQUIRED_FOR_SPECULATION,
    ExactnessFile,
    ExactnessVerdict,
    Invariance,
    InvarianceVerdict,
    Status,
)
from anespec.runtime.backends.verifier import shape_of
from anespec.validate.golden.figures import GoldenFile
from anespec.validate.quality.verdict import QualityFile
from anespec.validate.summary import KnownVerdicts, sentence, summary

from .page.phi_like import artifact_in, circumstances_on, golden_of, phi_manifest, quality_of, residency_of

NAME = "Phi-4-mini-instruct.Q8_0.gguf"
OPEN = [
    f"whether it computes what {NAME} means",
    "whether it may speculate",
    "what rounding costs it on a text",
]


OPTIONAL = ("width", "span", "region")


@pytest.fixture(scope="module")
def phi(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    manifest = phi_manifest(target="cpu", t_max=100, sequences=2)
    return artifact_in(tmp_path_factory.mktemp("phi") / "m.anespec", manifest)


def exactness(artifact: Artifact, **standings: Status) -> ExactnessVerdict:
    """Everything passes but what `standings` name; `not run` leaves an invariance out."""
    found = [
        InvarianceVerdict(
            invariance=invariance,
            cases=0 if standing is Status.NO_CASES else 8,
            unequal=3 if standing is Status.FAIL else 0,
            largest_difference=0,
        )
        for invariance in Invariance
        if (standing := standings.get(invariance.value, Status.PASS)) is not Status.NOT_RUN
    ]
    widths = (1, 2, 4, 8, 16, 32, 64) if standings.get("width", Status.PASS) is Status.PASS else (4,)
    return ExactnessVerdict(
        circumstances=circumstances_on(artifact),
        form="full",
        invariances=tuple(found),
        proven_widths=widths,
    )


def said(artifact: Artifact, **known: Any) -> str:
    text = sentence("m.anespec", artifact.manifest, circumstances_on(artifact), KnownVerdicts(**known))
    assert text.startswith("On openvino with 2 threads m.anespec ")
    assert text.endswith(".")
    return text.removeprefix("On openvino with 2 threads m.anespec ").removesuffix(".")


def test_all_that_passed_is_allowed_and_nothing_is_left_open(phi: Artifact) -> None:
    text = said(phi, golden=golden_of(phi, worst=0.01), exactness=exactness(phi), quality=quality_of(phi))
    change = quality_of(phi).figures.perplexity_change
    assert text == (
        f"computes what {NAME} means and may speculate, reuse prefixes, decode in passes of 1 row and more, "
        "prefill in passes of up to 64 rows, look at the slots in use alone and serve 2 sequences at once; "
        f"on book.txt its perplexity changed by {change:+.2f} %, no limit set"
    )


def test_spans_that_are_not_proven_are_named(phi: Artifact) -> None:
    shape = shape_of(phi.manifest, partial_spans=True)
    others = tuple(tuple(span for span in steps if span != 1024) for steps in shape.spans)
    verdict = exactness(phi, span=Status.FAIL).model_copy(update={"proven_spans": others})
    text = said(phi, exactness=verdict)
    assert "look at the slots in use alone, except where that is 1,024 slots" in text
    assert "but not" not in text


def test_nothing_known_is_only_questions(phi: Artifact) -> None:
    assert said(phi) == f"was not tested on {OPEN[0]}, {OPEN[1]} or {OPEN[2]}"


@pytest.mark.parametrize("asked", list(itertools.product((False, True), repeat=3)), ids=str)
def test_each_gate_is_either_answered_or_an_open_question(phi: Artifact, asked: tuple[bool, ...]) -> None:
    answers = {
        "golden": golden_of(phi, worst=0.01), "exactness": exactness(phi), "quality": quality_of(phi),
    }  # fmt: skip
    known = {gate: verdict for (gate, verdict), yes in zip(answers.items(), asked, strict=True) if yes}
    text = said(phi, **known)
    marks = (f"computes what {NAME} means", "may speculate, reuse", "perplexity changed")
    for mark, question, yes in zip(marks, OPEN, asked, strict=True):
        assert (question in text) is not yes
        assert (mark in text.replace(question, "")) is yes
    assert ("was not tested on" in text) is not all(asked)


@pytest.mark.parametrize(
    ("standings", "rights"),
    [
        (dict.fromkeys(OPTIONAL, Status.NO_CASES), "may speculate and reuse prefixes"),
        (dict.fromkeys(OPTIONAL, Status.NOT_RUN), "may speculate and reuse prefixes"),
        (
            {"width": Status.FAIL, "span": Status.FAIL},
            "may speculate, reuse prefixes and serve 2 sequences at once, but not decode in passes of fewer "
            "than 4 rows, prefill in passes wider than 4 rows or look at the slots in use alone, since bits "
            "depend on width and span",
        ),
        (
            {**dict.fromkeys(OPTIONAL, Status.NO_CASES), "region": Status.FAIL},
            "may speculate and reuse prefixes, but not serve several sequences at once, since bits depend on "
            "region",
        ),
        (
            {"lane": Status.FAIL, "partition": Status.FAIL},
            "may decode in passes of 1 row and more, prefill in passes of up to 64 rows, look at the slots "
            "in use alone and serve 2 sequences at once, but not speculate or reuse prefixes, since bits "
            "depend on lane and partition",
        ),
        (
            {**dict.fromkeys(OPTIONAL, Status.NO_CASES), "stale": Status.NO_CASES},
            "may not speculate or reuse prefixes, since there were no cases of stale",
        ),
        (
            {**dict.fromkeys(OPTIONAL, Status.FAIL), "span": Status.NO_CASES, "stale": Status.NOT_RUN},
            "may not speculate, reuse prefixes, decode in passes of fewer than 4 rows, prefill in passes "
            "wider than 4 rows or serve several sequences at once, since bits depend on width and region, "
            "and stale was not measured",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_rights_follow_from_the_invariances(phi: Artifact, standings: dict[str, Status], rights: str) -> None:
    text = said(phi, golden=golden_of(phi, worst=9), exactness=exactness(phi, **standings))
    assert text == f"does not compute what {NAME} means and {rights}; it was not tested on {OPEN[2]}"


@pytest.mark.parametrize("standings", list(itertools.product(list(Status), repeat=2)), ids=str)
@pytest.mark.parametrize("invariance", REQUIRED_FOR_SPECULATION)
def test_speculation_is_never_said_to_be_allowed_where_it_is_not(
    phi: Artifact, invariance: Invariance, standings: tuple[Status, Status]
) -> None:
    needed, other = standings
    verdict = exactness(phi, **{invariance.value: needed, "width": other})
    text = said(phi, exactness=verdict)
    assert ("may speculate" in text.split("; it was not tested on")[0]) is verdict.allows_speculation
    assert ("not speculate" in text) is not verdict.allows_speculation


def test_quality_is_reported_kept_or_exceeded(phi: Artifact) -> None:
    for limits, words in (
        ({}, "no limit set"),
        ({"max_kl": 50.0}, "on book.txt it keeps its limits, with a perplexity changed by"),
        ({"max_kl": 1e-9}, "on book.txt it fails, for a mean KL divergence of"),
    ):
        assert words in said(phi, quality=quality_of(phi, **limits))


def test_where_it_runs_matters_to_the_neural_engine_alone(phi: Artifact, tmp_path: Path) -> None:
    mac = artifact_in(tmp_path / "mac", phi_manifest())
    assert said(mac).endswith(", what rounding costs it on a text or where it would run")
    for source, words in (
        (PlanSource.PREDICTED, "rules predict 15 of 17 shards on the Neural Engine"),
        (PlanSource.MEASURED, "Core ML plans 15 of 17 shards on the Neural Engine"),
        (PlanSource.REPLAYED, "a replayed plan has 15 of 17 shards on the Neural Engine"),
    ):
        assert words in said(mac, residency=residency_of(mac, source))
        assert "Neural Engine" not in said(phi, residency=residency_of(mac, source))


def test_the_summary_reads_what_was_recorded_under_these_circumstances_alone(
    phi: Artifact, tmp_path: Path
) -> None:
    mac = artifact_in(tmp_path / "mac.anespec", phi_manifest())
    here, elsewhere = circumstances_on(mac), circumstances_on(mac, "torch")
    mac.record_verdict(GoldenFile, golden_of(mac, worst=0.01))
    mac.record_verdict(ExactnessFile, exactness(mac, **dict.fromkeys(OPTIONAL, Status.NO_CASES)))
    mac.record_verdict(QualityFile, quality_of(mac))
    mac.record_verdict(ResidencyFile, residency_of(mac))
    text = summary(mac, here)
    assert text.startswith(
        f"On openvino with 2 threads mac.anespec computes what {NAME} means and may speculate "
    )
    assert "rules predict" in text
    assert "not asked" not in text
    other = summary(mac, elsewhere)
    assert other.startswith("On torch with 2 threads mac.anespec was not tested on whether it computes")
    assert "rules predict" in other, "where it would run does not depend on the backend"
    assert "rules predict" not in summary(mac, here.model_copy(update={"artifact": "another"}))


def test_names_out_of_files_command_no_terminal(phi: Artifact) -> None:
    text = sentence("a\x1b[31m", phi.manifest, circumstances_on(phi), KnownVerdicts())
    assert "\x1b" not in text
