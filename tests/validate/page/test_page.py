"""report.html: complete, self-contained, escaped, well-formed, whatever is known of the artifact."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from phi_like import (
    artifact_in,
    circumstances_on,
    exactness_of,
    golden_of,
    phi_manifest,
    quality_of,
    residency_of,
)

from anespec.manifests.errors import StorageError
from anespec.manifests.residency import PlanSource, ResidencyFile
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, Invariance
from anespec.manifests.wording import harmless
from anespec.validate.figures import GoldenFile
from anespec.validate.page.write import PAGE_NAME, render_page, write_page
from anespec.validate.quality.verdict import QualityFile

VOID = {"meta", "br", "hr", "img", "input", "link"}
HOSTILE = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;{{ 7*7 }}\x1b[2J\u202e"


@dataclass
class Page(HTMLParser):
    """The elements and the text of a page; fails where tags do not close in order."""

    open: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def of(cls, html: str) -> "Page":
        page = cls()
        page.feed(html)
        page.close()
        assert page.open == []
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture
def bare(tmp_path: Path) -> Artifact:
    return artifact_in(tmp_path / "bare", phi_manifest())


@pytest.fixture
def full(tmp_path: Path) -> Artifact:
    artifact = artifact_in(tmp_path / "full", phi_manifest())
    artifact.record_verdict(ResidencyFile, residency_of(artifact))
    artifact.record_verdict(GoldenFile, golden_of(artifact, "torch", worst=0.07))
    artifact.record_verdict(GoldenFile, golden_of(artifact, worst=0.4))
    artifact.record_verdict(ExactnessFile, exactness_of(artifact, "torch", unequal=2))
    artifact.record_verdict(ExactnessFile, exactness_of(artifact))
    artifact.record_verdict(QualityFile, quality_of(artifact))
    artifact.record_verdict(QualityFile, quality_of(artifact, "code.py", max_kl=1e-9))
    return artifact


def test_an_artifact_that_was_never_validated(bare: Artifact) -> None:
    page = Page.of(render_page(bare))
    assert page.text.count("not run") == 4
    assert page.text.count("Not run yet") == 5
    assert "was not asked whether it computes what" in page.text
    assert "Weights" in page.text
    for shard in bare.manifest.shards:
        assert Path(shard.path).stem in page.text


@pytest.mark.parametrize("gate", ["residency", "golden", "exactness", "quality"])
def test_one_gate_alone(bare: Artifact, gate: str) -> None:
    match gate:
        case "residency":
            bare.record_verdict(ResidencyFile, residency_of(bare))
        case "golden":
            bare.record_verdict(GoldenFile, golden_of(bare))
        case "exactness":
            bare.record_verdict(ExactnessFile, exactness_of(bare))
        case "quality":
            bare.record_verdict(QualityFile, quality_of(bare))
    assert Page.of(render_page(bare)).text.count("Not run yet") == 4


def test_every_figure_is_there(full: Artifact) -> None:
    text = Page.of(render_page(full)).text
    for shard in full.manifest.shards:
        assert text.count(Path(shard.path).stem) >= 5, shard.path
    for size in ("2.02 GB", "403.2 MB", "50.3 MB", "10.6 MB"):
        assert size in text
    for words in (
        "820 ANE, 80 CPU",
        "large-shard",
        "put fewer layers in a shard (--topology)",
        "1312 of 1441",
    ):
        assert words in text
    assert "0.4 of 0.085 ✗ fail" in text
    assert "23 of 24 greedy tokens equal" in text
    assert "ffn_down int8-channel up to 0.008" in text
    assert "output fp16 up to 0.0002" in text
    for invariance in Invariance:
        assert invariance in text
    assert "rows cut 3+1: position 9" in text
    for verdict in full.read_verdicts(QualityFile).verdicts:
        figures = verdict.figures
        for number in (
            figures.kl.mean,
            figures.kl.median,
            figures.kl.p95,
            figures.kl.p99,
            figures.kl.largest,
        ):
            assert f"{number:.3g}" in text
        assert f"{figures.artifact_perplexity:.4f}" in text
        assert f"{figures.perplexity_change:+.3f}" in text
        assert f"{100 * figures.top1_agreement:.2f} %" in text


def test_badges_say_what_decides(full: Artifact) -> None:
    html = render_page(full)
    badges = {gate: state for state, gate in re.findall(r'<a class="(\w+)" href="#(\w+)">', html)}
    assert badges == {
        "residency": "noted",
        "golden": "red",
        "exactness": "red",
        "quality": "red",
    }
    text = Page.of(html).text
    assert "predicted: 15 of 17 shards on the Neural Engine" in text
    assert "fail on openvino; pass on torch" in text
    assert "Predicted by rules, not measured" in text


def test_a_measured_plan_decides_and_names_what_is_off(bare: Artifact) -> None:
    bare.record_verdict(ResidencyFile, residency_of(bare, PlanSource.MEASURED))
    html = render_page(bare)
    assert 'class="red" href="#residency"' in html
    assert "gather rows&lt;b&gt;" in html
    assert "Predicted" not in html


def test_an_artifact_for_a_processor_is_not_blamed_for_residency(tmp_path: Path) -> None:
    artifact = artifact_in(tmp_path / "cpu", phi_manifest(target="cpu"))
    artifact.record_verdict(ResidencyFile, residency_of(artifact, PlanSource.MEASURED))
    html = render_page(artifact)
    assert 'href="#residency"' not in html
    assert "Not asked: this artifact was converted with" in Page.of(html).text


def test_verdicts_on_other_shards_are_not_shown(bare: Artifact, full: Artifact) -> None:
    stranger = golden_of(full).model_copy(
        update={"circumstances": circumstances_on(full).model_copy(update={"artifact": "other"})}
    )
    bare.record_verdict(GoldenFile, stranger)
    assert Page.of(render_page(bare)).text.count("Not run yet") == 5


def test_nothing_is_loaded_and_nothing_runs(full: Artifact) -> None:
    html = render_page(full)
    page = Page.of(html)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not re.search(r"url\(|@import|https?:|//\w", html)
    assert all(
        value.startswith("#") for name, value in page.attributes if name in ("href", "src", "xlink:href")
    )
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    targets = {value[1:] for name, value in page.attributes if name == "href"}
    assert targets <= {value for name, value in page.attributes if name == "id"}
    assert "default-src 'none'" in html


def test_pictures_have_words(full: Artifact) -> None:
    html = render_page(full)
    for picture in re.findall(r'<svg [^>]*role="img"[^>]*>', html):
        assert re.search(r'aria-label="[^"]+"', picture), picture
    shown = re.findall(r"<svg(?: class=\"axis\")? height=\"\d+\"[^>]*>", html)
    assert all('role="img"' in picture or 'aria-hidden="true"' in picture for picture in shown)


def test_places_stay_within_the_picture(full: Artifact) -> None:
    places = re.findall(r'(?:x|x1|x2|cx|width|height|y)="(-?[\d.]+)%"', render_page(full))
    assert len(places) > 200
    assert all(0 <= float(place) <= 100.001 for place in places)


def test_whatever_an_artifact_says_is_text(tmp_path: Path) -> None:
    artifact = artifact_in(tmp_path / "bad", phi_manifest(name=HOSTILE, built_with={HOSTILE: HOSTILE}))
    artifact.record_verdict(QualityFile, quality_of(artifact, HOSTILE))
    exactness = exactness_of(artifact, HOSTILE, unequal=1)
    found = tuple(v.model_copy(update={"detail": HOSTILE}) for v in exactness.invariances)
    artifact.record_verdict(ExactnessFile, exactness.model_copy(update={"invariances": found}))
    golden = golden_of(artifact, HOSTILE, worst=0.4)
    artifact.record_verdict(GoldenFile, golden)
    residency = residency_of(artifact)
    findings = tuple(
        f.model_copy(update={"rule": HOSTILE, "subject": HOSTILE, "detail": HOSTILE, "mend": HOSTILE})
        for f in residency.findings
    )
    artifact.record_verdict(ResidencyFile, residency.model_copy(update={"findings": findings}))
    html = render_page(artifact)
    page = Page.of(html)
    assert not {"script", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "<script" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert harmless(HOSTILE) in " ".join(page.texts)


def test_writing_is_one_step(bare: Artifact) -> None:
    path = bare.root / PAGE_NAME
    path.write_text("old")
    assert write_page(bare) == path
    assert path.read_text("utf-8") == render_page(bare)
    assert not [other.name for other in bare.root.iterdir() if other.name.startswith(".")]
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match=r"report\.html"):
        write_page(bare)


def test_unreadable_verdicts_do_not_hinder(bare: Artifact) -> None:
    bare.gates.mkdir()
    (bare.gates / "golden.json").write_text("{")
    assert Page.of(render_page(bare)).text.count("Not run yet") == 5
