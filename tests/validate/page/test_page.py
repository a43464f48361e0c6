"""report.html: complete, self-contained, escaped, well-formed, whatever is known of the artifact."""

import io
import re
from pathlib import Path

import pytest
from html_page import Page
from phi_like import (
    artifact_in,
    circumstances_on,
    exactness_of,
    formats_of,
    golden_of,
    phi_manifest,
    quality_of,
    residency_of,
    sample_of,
    worst_token,
)
from rich.console import Console

from anespec.manifests.residency import PlanSource, ResidencyFile
from anespec.manifests.schema import Manifest, Shard, WeightFormat
from anespec.manifests.store import Artifact, file_sha256
from anespec.manifests.verdicts import OPTIONAL, REQUIRED_FOR_SPECULATION, ExactnessFile, Invariance
from anespec.models.verdict_summary import recorded_verdicts
from anespec.system.errors import StorageError
from anespec.system.formatting import sanitize_terminal
from anespec.validate.golden.figures import GoldenFile
from anespec.validate.other_formats import FormatsFile
from anespec.validate.page.write import PAGE_NAME, render_page, write_page
from anespec.validate.quality.verdict import QualityFile
from anespec.validate.report import exactness_lines, exactness_table
from anespec.validate.sample.figures import ReferenceReading, SampleFile
from anespec.validate.summary import summary

HOSTILE = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;{{ 7*7 }}\x1b[2J\u202e"


@pytest.fixture
def embedded_tokens() -> Path:
    """A GGUF whose model has a name."""
    return Path(__file__).resolve().parents[3] / "embedded" / "model.gguf"


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
    assert f"anespec validate {bare.root.name} --quality TEXT" in " ".join(page.text.split())
    assert "was not tested on whether it computes what" in page.text
    assert "Weights" in page.text
    for shard in bare.manifest.shards:
        assert Path(shard.path).stem in page.text


@pytest.mark.fast_only("exactness")
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


def test_a_sentence_comes_first_and_is_that_of_the_verb(full: Artifact) -> None:
    page = Page.of(render_page(full))
    first = summary(full, circumstances_on(full))
    assert first in page.text
    assert page.text.index(first) < page.text.index("Speed, memory and text")
    assert summary(full, circumstances_on(full, "torch")) in page.text


def test_the_title_is_the_name_in_the_vocabulary(tmp_path: Path, embedded_tokens: Path) -> None:
    tokens = {"path": "tokens.gguf", "bytes": embedded_tokens.stat().st_size, "embedding_tensor": "any"}
    tokens["sha256"] = file_sha256(embedded_tokens)
    artifact = artifact_in(tmp_path / "named", phi_manifest(tokens=tokens))
    assert "<h1>Phi-4-mini-instruct.Q8_0.gguf</h1>" in render_page(artifact)
    (artifact.root / "tokens.gguf").write_bytes(embedded_tokens.read_bytes())
    html = render_page(Artifact(artifact.root))
    assert "<h1>anespec demo</h1>" in html
    assert "Phi-4-mini-instruct.Q8_0.gguf: phi3" in Page.of(html).text


def test_hashes_are_short_with_the_rest_on_demand(full: Artifact) -> None:
    digest = full.manifest.source.sha256
    head, tail = render_page(full).split("Hashes in full")
    assert digest not in re.sub(r"<[^>]*>", "", head)
    assert f'title="{digest}"' in head
    assert f"<code>{digest}</code>" in tail


def test_a_command_can_be_copied_with_every_blank(full: Artifact) -> None:
    full.record_verdict(SampleFile, sample_of(full, prompt="def f():\n    return"))
    html = render_page(full)
    assert "-p $&#39;def f():\\n    return&#39;\n" in re.sub(r"<[^>]*>", "", html)
    assert ".commands code { white-space: pre-wrap; }" in html
    assert '<span class="whole">--head-shards</span>' in html, "a line must not end inside an option"


def test_a_sample_with_and_without_drafts_beside_the_reference(full: Artifact) -> None:
    full.record_verdict(SampleFile, sample_of(full))
    html = render_page(full)
    text = Page.of(html).text
    for words in (
        "One pass at T = 4 20.0 ms median; 50.0 passes a second",
        "Without drafts 50.0 tokens/s",
        "With drafts by lookup 94.0 tokens/s 1.88 tokens a pass; 22 of 40 drafts right",
        "Memory 2.35 GB",
        "They differ from token 3 of 4 on: the fp32 reference gives 40 % to “ dog” and 35 % to “ cat”, "
        "a margin of 0.13 nats. Given this text, it would choose otherwise at 1 later token.",
    ):
        assert words in text
    assert re.search(r'<mark class="parting" title="[^"]*“ dog”[^"]*"> cat</mark>', html)
    assert '<mark class="parting"> dog</mark><mark class="other">!</mark>' in html
    assert "drafts changed the text" not in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"same_text": False}, "✗ drafts changed the text"),
        ({"reference": None}, "the reference did not read this"),
        ({"drafted": None, "same_text": None}, "the exactness gate does not allow them here"),
        ({"pieces": (), "reference": ReferenceReading(others=(), own=None)}, "the same text"),
    ],
)
def test_what_a_sample_may_lack(full: Artifact, changes: dict[str, object], words: str) -> None:
    full.record_verdict(SampleFile, sample_of(full, **changes))
    assert words in Page.of(render_page(full)).text


def test_other_weight_formats_are_called_an_estimate(full: Artifact) -> None:
    full.record_verdict(FormatsFile, formats_of(full))
    html = render_page(full)
    text = Page.of(html).text
    assert "An estimate: sizes are exact but for headers, errors are those of 0.15 % of the weights" in text
    # The artifact has fp16 heads beside int8 layers: none of the formats alone is its own.
    assert "fp16, int8-channel ← this artifact" in text
    uniform = artifact_in(full.root.parent / "uniform", _in_one_format(full))
    uniform.record_verdict(FormatsFile, formats_of(uniform))
    assert "int8-channel ← this artifact" in Page.of(render_page(uniform)).text


def test_the_worst_positions_are_shown_in_their_place(full: Artifact) -> None:
    verdict = quality_of(full).model_copy(update={"worst": (worst_token(),)})
    full.record_verdict(QualityFile, verdict)
    text = Page.of(render_page(full)).text
    assert "the quick dog token 42 dog 90 % cat 60 %" in text
    assert "25 % 1.25" in text


def test_bars_that_are_all_alike_are_a_sentence(bare: Artifact) -> None:
    mixed = residency_of(bare, PlanSource.MEASURED)
    alike = tuple(s for s in mixed.shards[:1] + mixed.shards[2:4])
    bare.record_verdict(ResidencyFile, mixed.model_copy(update={"shards": alike}))
    page = Page.of(render_page(bare))
    assert "operations in 3 shards: every one on the Neural Engine." in page.text
    assert "By operation kind" not in page.text
    lossless = artifact_in(bare.root.parent / "lossless", _in_one_format(bare, error=0.0))
    assert "own numbers: storing them added no error" in Page.of(render_page(lossless)).text


def test_quality_without_limits_is_reported_and_region_without_cases_has_none(bare: Artifact) -> None:
    bare.record_verdict(QualityFile, quality_of(bare))
    bare.record_verdict(ExactnessFile, exactness_of(bare))
    text = Page.of(render_page(bare)).text
    assert "• reported" in text
    assert re.search(r"region \(optional\) . no cases", text)
    assert not re.search(
        r"\b(green|red|proven|passed|failed)\b", text[text.index("anespec report :root") :].split("}")[-1]
    )


def _in_one_format(artifact: Artifact, error: float = 0.008) -> Manifest:
    manifest = artifact.manifest

    def alike(shard: Shard) -> Shard:
        changes = {"weights": WeightFormat.INT8_CHANNEL, "max_error": 2 * error}
        tensors = (
            t.model_copy(update=changes | {"squared_error": t.squares * error**2}) for t in shard.tensors
        )
        return shard.model_copy(update={"tensors": tuple(tensors)})

    heads, layers = (tuple(map(alike, shards)) for shards in (manifest.head_shards, manifest.layer_shards))
    return manifest.model_copy(update={"head_shards": heads, "layer_shards": layers})


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
    assert "Not required: this artifact was converted with" in Page.of(html).text


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
    sample = sample_of(artifact, HOSTILE)
    passage = sample.passages[0].model_copy(update={"prompt": HOSTILE, "pieces": (HOSTILE,) * 4})
    artifact.record_verdict(SampleFile, sample.model_copy(update={"passages": (passage,)}))
    worst = worst_token(HOSTILE, before=HOSTILE)
    verdict = quality_of(artifact, "other").model_copy(update={"worst": (worst,)})
    artifact.record_verdict(QualityFile, verdict)
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
    assert sanitize_terminal(HOSTILE) in " ".join(page.texts)


def test_a_text_of_any_length_is_cut(bare: Artifact) -> None:
    sample = sample_of(bare)
    passage = sample.passages[0].model_copy(update={"prompt": "p" * 10**6, "pieces": ("x" * 10**5,) * 100})
    bare.record_verdict(SampleFile, sample.model_copy(update={"passages": (passage,)}))
    assert len(render_page(bare)) < 200_000


@pytest.mark.slow
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


def test_an_optional_invariance_that_fails_is_not_proven_and_no_failure(bare: Artifact) -> None:
    verdict = exactness_of(bare)
    found = [
        each.model_copy(update={"unequal": 8} if each.invariance is Invariance.WIDTH else {})
        for each in verdict.invariances
    ]
    verdict = verdict.model_copy(
        update={"invariances": tuple(found), "form": "quick", "proven_widths": (2, 4)}
    )
    bare.record_verdict(ExactnessFile, verdict)
    text = Page.of(render_page(bare)).text
    section = text[text.index("when only its circumstances change") : text.index("Quality")]
    assert "✗" not in section
    assert "not proven" in section
    assert f"Speculation needs {', '.join(REQUIRED_FOR_SPECULATION)}; the gate passes" in section
    assert f"optional: {', '.join(OPTIONAL)} allow" in section
    assert "in the quick form, which proves nothing of passes of fewer rows than a block" in section
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    console.print(exactness_table(verdict), *exactness_lines(verdict))
    (row,) = (line for line in shown.getvalue().splitlines() if "width (optional)" in line)
    assert "not proven" in row
    assert "fail" not in shown.getvalue()
    assert "width is not proven, so the runtime does without; speculation needs lane," in shown.getvalue()
    (recorded,) = (each for each in recorded_verdicts(bare) if each.gate == "exactness")
    assert "not proven: width" in recorded.finding
    assert "fail" not in recorded.finding
