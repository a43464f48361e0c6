"""`--draft`: a second model drafts for `generate`, `bench run` and `serve`, and changes no token."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import CommandResult, convert_once, run
from embedded_variants import write_renumbered
from once import Once

from anespec.embedded import model_path
from anespec.model import load_model
from anespec.models.draft_model import translation_between
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.options import ServeOptions
from anespec.serving.config_file import PoolOptions, read_config
from anespec.serving.loader import ArtifactLoader
from anespec.serving.request import ServeRequest
from anespec.serving.sources import ModelSource
from anespec.system.errors import RequestError, UsageError
from anespec.system.progress import SILENT

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

PROMPT = ("-p", "def read(path):\n", "-n", 60)


@pytest.fixture(autouse=True)
def costs_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """So drafts run whatever a pass takes here, and beside other work."""
    monkeypatch.setattr("anespec.validate.costs.kept_costs", lambda *_: None)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, once: Once) -> Path:
    """The embedded model with another vocabulary of the same texts, as an artifact."""
    folder = tmp_path_factory.mktemp("renumbered")
    gguf = write_renumbered(folder / "renumbered.gguf")
    return convert_once(once, gguf, folder / "other.anespec", "--target", "cpu", "--context", 256)


def generated(model: Path, *options: object) -> CommandResult:
    result = run("generate", model, *PROMPT, "--json", *options)
    assert result.code == 0, result.err
    return result


@pytest.fixture(scope="module")
def plain(trained: Path) -> list[int]:
    """The text without drafts."""
    ids = generated(trained, "--drafter", "none").json["output_ids"]
    assert isinstance(ids, list)
    return ids


def test_a_model_of_the_same_vocabulary_drafts(trained: Path, plain: list[int]) -> None:
    drafted = generated(trained, "--drafter", "model", "--draft", trained, "--draft-max", 2)
    found = drafted.json
    assert found["output_ids"] == plain
    assert found["drafts"]["model"]["accepted"] >= 5
    assert found["passes"] < 58
    assert "is the model itself, so its guess takes as long as the token that it saves" in drafted.err


@pytest.mark.slow
@pytest.mark.parametrize("translate", ["context", "naive", "intersect"])
def test_a_model_of_another_vocabulary_drafts(
    trained: Path, other: Path, plain: list[int], translate: str
) -> None:
    found = generated(trained, "--drafter", "model", "--draft", other, "--translate", translate).json
    assert found["output_ids"] == plain
    assert found["drafts"]["model"]["accepted"] >= 5


@pytest.mark.slow
def test_untranslated_ids_of_another_vocabulary_are_wrong_and_harmless(
    trained: Path, other: Path, plain: list[int]
) -> None:
    """So the translation is what makes the drafts of the other tests right."""
    result = generated(trained, "--drafter", "model", "--draft", other, "--translate", "none")
    found = result.json
    assert found["output_ids"] == plain
    drafts = found["drafts"]["model"]
    assert "with --translate none nearly all its guesses are wrong" in " ".join(result.err.split())
    assert drafts["proposed"] > 5
    assert drafts["accepted"] <= 0.2 * drafts["proposed"]


def test_two_models_that_do_not_fit_are_refused(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anespec.system.machine.machine_memory", lambda: 4_000_000)
    with pytest.raises(RequestError, match=r"and this machine has 4\.0 MB; give"):
        load_model(trained, LoadOptions(draft=trained, gates="never"), SILENT)


@pytest.mark.slow
def test_a_second_model_with_a_shorter_context_is_told(
    trained: Path, plain: list[int], tmp_path: Path, once: Once
) -> None:
    short = convert_once(once, model_path(), tmp_path / "short.anespec", "--target", "cpu", "--context", 64)
    found = generated(trained, "--drafter", "model", "--draft", short)
    assert found.json["output_ids"] == plain
    assert f"{short} takes 64 tokens of the 256 that a text may have" in found.err


@pytest.mark.slow
def test_n_grams_and_a_model_draft_together(trained: Path, other: Path, plain: list[int]) -> None:
    found = generated(trained, "--drafter", "lookup", "--draft", other)
    assert found.json["output_ids"] == plain
    assert "another vocabulary" in found.err
    assert "model" in found.json["drafts"]


@pytest.mark.slow
def test_a_gguf_is_converted_to_draft(trained: Path, plain: list[int], tmp_path: Path) -> None:
    gguf = tmp_path / "small.gguf"
    gguf.write_bytes(model_path().read_bytes())
    found = generated(trained, "--drafter", "model", "--draft", gguf).json
    assert found["output_ids"] == plain
    assert found["drafts"]["model"]["accepted"] >= 5


@pytest.mark.slow
def test_sampled_text_is_the_same_with_a_model(trained: Path, other: Path) -> None:
    sampling = ("--temperature", 0.9, "--seed", 7)
    plain = generated(trained, "--drafter", "none", *sampling).json["output_ids"]
    found = generated(trained, "--drafter", "model", "--draft", other, *sampling).json
    assert found["output_ids"] == plain
    assert found["drafts"]["model"]["accepted"] >= 3


@pytest.mark.fast_only(
    "options4-'0' is not between 1 and 64",
    "options1---drafter none turns all drafts off",
    "options0---drafter model needs a second model; name it with --draft",
    "options3-is neither a GGUF nor the folder of an artifact",
)
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--drafter", "model"), "--drafter model needs a second model; name it with --draft"),
        (("--drafter", "none", "--draft", "{other}"), "--drafter none turns all drafts off"),
        (("--draft", "{missing}"), "is no file, no folder and no model in the cache"),
        (("--draft", "{text}"), "is neither a GGUF nor the folder of an artifact"),
        (("--draft", "{other}", "--translate-prefix", 0), "'0' is not between 1 and 64"),
        (("--draft-max", 4), "--draft-max has no effect without a second model; name one with --draft"),
        (("--translate", "naive", "--draft-min-p", 0.5), "--draft-min-p and --translate have no effect"),
        (("--draft", ""), "a name is missing"),
    ],
)
def test_what_cannot_draft_is_refused_in_one_sentence(
    trained: Path, other: Path, tmp_path: Path, options: tuple[object, ...], sentence: str
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("no model")
    named = [str(each).format(other=other, missing=tmp_path / "missing", text=text) for each in options]
    result = run("generate", trained, *PROMPT, *named)
    assert result.code not in (0, 1)
    assert sentence in result.err.replace("\n", " ")
    assert "Traceback" not in result.err
    assert result.out == ""


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML runs on a Mac")
def test_a_second_model_s_backend_that_cannot_run_is_named_by_its_option(trained: Path, other: Path) -> None:
    result = run("generate", trained, *PROMPT, "--draft", other, "--draft-backend", "coreml")
    assert result.code == 1
    assert "use --draft-backend openvino here" in " ".join(result.err.split())


def test_a_replay_has_no_model_to_draft_with(tmp_path: Path, trained: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"category": "told", "messages": []}))
    result = run("bench", "replay", trace, "--vocab", trained, "--drafter", "model")
    assert result.code == 7
    assert "traces are replayed without any model" in result.err


def test_a_daemon_counts_the_second_model_as_the_first_ones(trained: Path, other: Path) -> None:
    loader = ArtifactLoader(lambda: SILENT)
    alone = loader.find(ModelSource(trained, LoadOptions()))
    both = loader.find(ModelSource(trained, LoadOptions(draft=other)))
    assert both.memory > 1.9 * alone.memory
    assert both.files == alone.files, "what is written into the second one's spoils no text"
    with loader.load(ModelSource(trained, LoadOptions(draft=other, drafter="model")), both) as model:
        result = model.generate("def read(path):\n", max_tokens=40)
    assert result.choices[0].statistics.accepted >= 3


def test_common_options_about_second_models_are_for_the_models_that_have_one(tmp_path: Path) -> None:
    file = tmp_path / "anespec.toml"
    models = '[models]\na = { path = "a.anespec", draft = "s.anespec" }\nb = { path = "b.anespec" }\n'
    file.write_text(f"draft_max = 3\n{models}")
    config = read_config(file)
    request = ServeRequest(
        None, ServeOptions(), PoolOptions(), LoadOptions(draft_max=config.options["draft_max"]), config
    )
    found = request.names(config)
    assert {name: source.loading.draft_max for name, source in found.items()} == {"a": 3, "b": 15}
    for source in found.values():
        source.loading.require_draft_model()


def test_config_files_name_a_second_model(tmp_path: Path) -> None:
    file = tmp_path / "anespec.toml"
    file.write_text('draft = "small.gguf"\n[models]\na = { path = "a.gguf", draft = "hf:owner/repo" }\n')
    (tmp_path / "small.gguf").touch()
    config = read_config(file)
    assert config.options["draft"] == tmp_path / "small.gguf"
    assert str(config.models["a"].draft) == "hf:owner/repo"
    file.write_text('[models]\na = { path = "a.gguf", draft = 5 }\n')
    with pytest.raises(UsageError, match="draft is 5"):
        read_config(file)


def test_vocabularies_without_a_common_token_cannot_intersect() -> None:
    def alone(letters: str) -> Any:
        return SimpleNamespace(
            vocabulary_size=len(letters),
            piece=lambda id, skip_special: letters[id].encode(),
            is_byte=lambda id: False,
        )

    with pytest.raises(RequestError, match="no token in common"):
        translation_between(alone("abc"), alone("xyz"), LoadOptions(translate="intersect"))
