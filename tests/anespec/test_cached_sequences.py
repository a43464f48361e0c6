"""One artifact of the cache for all verbs: how many of its sequences run, and what is refused."""

from pathlib import Path

import pytest
from commands import run
from converting import build
from tiny_model import TinyModel, write_gguf

import anespec
from anespec.checking.asked_gates import Question
from anespec.checking.model_check import check_asked
from anespec.checking.validation import ALONE, _asking
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile
from anespec.manifests.weight_choice import WeightChoice
from anespec.model import Model, load_model
from anespec.models.cache import ModelCache, resolve_artifact, sequences_to_run
from anespec.models.loading import open_artifact
from anespec.runtime.options import LoadOptions
from anespec.system.errors import UsageError
from anespec.system.progress import SILENT, ProgressCallbacks
from anespec.validate.check_parts import Part
from anespec.validate.golden.figures import GoldenFile
from anespec.validate.options import ValidateOptions

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")


def test_an_artifact_must_be_what_is_wanted_of_it(artifact: Path, trained: Path) -> None:
    assert resolve_artifact(artifact) == artifact
    manifest = Artifact(trained).manifest
    assert resolve_artifact(trained, context=manifest.context, sequences=1) == trained
    assert resolve_artifact(trained, context=250, weights=WeightChoice()) == trained
    for wanted, said in (
        ({"context": 512}, "was converted with a context of 256 tokens, not 512; leave out these options"),
        ({"sequences": 4}, "was converted with 1 sequence at a time, not 4"),
        (
            {"weights": WeightChoice.parse("lut6")},
            "was converted with weights stored as int8-channel, not lut6",
        ),
    ):
        with pytest.raises(UsageError, match=said):
            resolve_artifact(trained, **wanted)
    assert resolve_artifact(artifact, weights=WeightChoice.parse("fp16")) == artifact


def test_one_of_the_cache_runs_as_many_sequences_as_are_wanted(
    tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gguf, output = artifact_of_four(tmp_path)
    assert sequences_to_run(output, None) == 1
    assert sequences_to_run(output, None, 4) is None
    assert sequences_to_run(output, 2, 4) == 2
    assert sequences_to_run(artifact, None) is None
    assert resolve_artifact(output, sequences=2) == output
    asked = Question(Artifact(output), "torch", 1, None)
    assert [*_asking(asked, ValidateOptions(gates=("exactness",)))] == ["exactness", ALONE]
    assert [*_asking(asked, ValidateOptions(gates=("golden",)))] == ["golden"]
    assert ALONE not in _asking(Question(Artifact(artifact), "torch", 1, None), ValidateOptions())
    with pytest.raises(UsageError, match="4 sequences at a time, not 8"):
        resolve_artifact(output, sequences=8)
    assert gguf.is_file()


def test_a_folder_without_a_verdict_is_loaded_for_the_one_sequence_that_a_single_answer_needs(
    tmp_path: Path,
) -> None:
    """Passes without proven spans attend to all slots, so those of more sequences cost time and memory."""
    gguf = tmp_path / "tiny.gguf"
    write_gguf(gguf, TinyModel(context=256))
    folder = build(gguf, tmp_path / "own.anespec", target=Target.CPU, context=256, sequences=4).path

    def loaded(**options: object) -> Model:
        asked = LoadOptions(threads=1, drafter="none").with_changes(**options)
        return load_model(folder, asked, SILENT, beside=False)

    for options, sequences in (
        ({"gates": "never"}, 1),
        ({"gates": "never", "sequences": 4}, 4),
        ({"gates": "never", "allow_inexact": True}, 4),
    ):
        with loaded(**options) as model:
            assert model.sequences == sequences
            assert len(model.generate("def ", max_tokens=6, ignore_eos=True).output_ids) == 6
    with anespec.load(folder, threads=1, gates="never", drafter="none") as library:
        assert library.sequences == 4
    options = LoadOptions(threads=1, gates="later")
    opened = open_artifact(folder, options, SILENT, runs_one=True)
    opened.verifier.close()
    asked = check_asked(opened, options)
    assert asked is not None and asked.sequences is None and Part.EXACTNESS in asked.parts
    with anespec.load(folder, threads=1, gates="now", drafter="none") as checked:
        assert checked.sequences == 4
    with loaded(gates="never") as model:
        assert model.sequences == 4


def artifact_of_four(folder: Path) -> tuple[Path, Path]:
    """A GGUF, and an artifact of it for four sequences that lies where the cache has one."""
    gguf = folder / "tiny.gguf"
    write_gguf(gguf, TinyModel(context=256))
    output = ModelCache().root / "0123456789abcdef" / "model.anespec"
    output.parent.mkdir(parents=True)
    build(gguf, output, target=Target.CPU, context=256, sequences=4)
    return gguf, output


@pytest.mark.slow
def test_a_verb_opens_one_of_the_cache_for_as_many_as_it_needs(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with anespec.load(gguf, threads=1, context=128, drafter="none") as alone:
        assert (alone.sequences, alone.manifest.sequences, alone.context) == (1, 4, 128)
        text = alone.generate("def ", max_tokens=6).text
        made = alone.path
    with anespec.load(gguf, threads=1, context=128, sequences=4, drafter="none") as several:
        assert (several.path, several.sequences) == (made, 4)
        assert several.generate("def ", max_tokens=6).text == text
    golden = Artifact(made).read_verdicts(GoldenFile).verdicts
    exactness = Artifact(made).read_verdicts(ExactnessFile).verdicts
    assert [verdict.circumstances.sequences for verdict in golden] == [None]
    assert [verdict.circumstances.sequences for verdict in exactness] == [1, None]
    with pytest.raises(UsageError, match="a context of 128 tokens, not 256"):
        anespec.load("llama", context=256)


@pytest.mark.slow
def test_what_validate_proves_of_a_file_is_what_other_verbs_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gguf = tmp_path / "tiny.gguf"
    write_gguf(gguf, TinyModel(context=256))
    checked = run("validate", gguf, "--gate", "exactness", "--quick", "--threads", 1, "--json")
    assert checked.code == 0, checked.err
    assert [gate["name"] for gate in checked.json["gates"]] == ["exactness", ALONE]  # type: ignore[index]
    assert {gate["standing"] for gate in checked.json["gates"]} == {"pass"}  # type: ignore[index]
    for sequences in (None, 4):
        notes: list[str] = []
        watch = ProgressCallbacks(note=notes.append)
        with anespec.load(gguf, threads=1, sequences=sequences, gates="never", watch=watch) as model:
            assert model.speculates
            assert model.sequences == (sequences or 1)
        assert not [note for note in notes if "checked" in note]


@pytest.mark.slow
def test_asking_for_the_usual_context_by_its_number_converts_nothing_anew(
    tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Artifact(resolve_artifact(gguf)).manifest.context
    for first, second in ((usual, None), (None, usual)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{first}"))
        made = resolve_artifact(gguf, context=first)
        assert resolve_artifact(gguf, context=second) == made
        assert resolve_artifact(gguf, context=usual // 2) != made
