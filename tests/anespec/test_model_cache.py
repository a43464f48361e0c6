"""The cache of converted models: each is made once, whole, and found by content."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from patience import PATIENCE

import anespec
import anespec.models.cache as preparing
from anespec import __version__
from anespec.cli.verbs.cache import list_models, remove_models
from anespec.manifests.schema import SCHEMA_VERSION, Target
from anespec.manifests.store import file_sha256, model_sha256
from anespec.manifests.weight_choice import WeightChoice
from anespec.models.cache import ModelCache, prepare_model, resolve_artifact
from anespec.models.conversion import USUAL_SEQUENCES, Build, Entry, free_name
from anespec.system.errors import (
    ArtifactError,
    GGUFError,
    GoldenGateError,
    NotFoundError,
    RequestError,
    StorageError,
)
from anespec.system.progress import SILENT, ProgressCallbacks
from anespec.system.user_folders import private_folder

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

BUILD = Build(Target.CPU)


class Maker:
    """Stands for conversion and gates: writes a file, and counts."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.hash: Callable[[Path], str] = file_sha256
        self.before_writing: Callable[[], None] = lambda: None

    def __call__(
        self,
        gguf: Path,
        output: Path,
        build: Build,
        watch: ProgressCallbacks,
    ) -> Entry:
        self.made.append(gguf.name)
        self.before_writing()
        output.mkdir(exist_ok=True)
        (output / "weights").write_bytes(gguf.read_bytes())
        return Entry(
            name=gguf.stem, source_sha256=self.hash(gguf), source_bytes=4, quantisation="Q8_0",
            weights=("fp16",), bytes=4, target=build.target, context=build.context or 64,
            version=__version__, schema_version=SCHEMA_VERSION, sequences=build.built_sequences,
            weight_choice=str(build.weights), usual_context=build.context is None,
        )  # fmt: skip


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Maker:
    made = Maker()
    monkeypatch.setattr(preparing, "prepare_model", made)
    return made


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "anespec" / "models")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF one")
    return path


def ask(cache: ModelCache, gguf: Path, build: Build = BUILD) -> Path:
    return cache.artifact_of(gguf, build, SILENT)


def test_a_model_is_made_once_and_found_by_content(
    cache: ModelCache, model: Path, maker: Maker, tmp_path: Path
) -> None:
    first = ask(cache, model)
    assert (first / "weights").read_bytes() == b"GGUF one"
    other_name = shutil.copy(model, tmp_path / "renamed.gguf")
    assert ask(cache, other_name) == ask(cache, model) == first
    assert maker.made == ["tiny.gguf"]


def test_other_content_and_other_choices_are_other_models(
    cache: ModelCache, model: Path, maker: Maker
) -> None:
    places = {
        ask(cache, model),
        ask(cache, model, Build(Target.CPU, 128)),
        ask(cache, model, Build(Target.MAC)),
    }
    model.write_bytes(b"GGUF two")
    places.add(ask(cache, model))
    assert len(places) == len(maker.made) == 4


def test_a_change_of_any_part_is_another_model(cache: ModelCache, maker: Maker, tmp_path: Path) -> None:
    first, second = (tmp_path / f"tiny-0000{number}-of-00002.gguf" for number in (1, 2))
    for path in (first, second):
        path.write_bytes(b"GGUF one")
    maker.hash = model_sha256
    place = ask(cache, first)
    assert ask(cache, first) == place
    second.write_bytes(b"GGUF two")
    assert ask(cache, first) != place
    second.unlink()
    with pytest.raises(GGUFError, match=r"tiny-00002-of-00002.gguf is missing beside it"):
        ask(cache, first)


def test_two_at_once_convert_once(cache: ModelCache, model: Path, maker: Maker) -> None:
    waiting = threading.Event()

    class Shown:
        def __init__(self, title: str) -> None:
            if title.startswith("waiting"):
                waiting.set()

        def __enter__(self) -> Callable[..., None]:
            return lambda note, share=None: None

        def __exit__(self, *_: object) -> None:
            pass

    # The first is held up until the second waits for it.
    maker.before_writing = lambda: None if waiting.wait(PATIENCE) else pytest.fail("nobody waits")
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(cache.artifact_of, model, BUILD, ProgressCallbacks(shares=Shown)) for _ in range(2)
        ]
        assert both[0].result(PATIENCE) == both[1].result(PATIENCE)
    assert maker.made == ["tiny.gguf"]


def test_an_interrupted_one_is_made_again_and_shows_as_unfinished(
    cache: ModelCache, model: Path, maker: Maker
) -> None:
    def stop() -> None:
        (folder,) = (path for path in cache.root.iterdir() if path.is_dir())
        (folder / "shard").touch()
        raise KeyboardInterrupt

    maker.before_writing = stop
    with pytest.raises(KeyboardInterrupt):
        ask(cache, model)
    (left,) = cache.models()
    assert left.entry is None
    assert cache.named(left.key) is None
    maker.before_writing = lambda: None
    assert ask(cache, model).is_dir()
    (whole,) = cache.models()
    assert (whole.key, whole.name) == (left.key, "tiny")


def test_what_could_not_be_begun_leaves_nothing(cache: ModelCache, model: Path, maker: Maker) -> None:
    def refuse() -> None:
        raise RequestError("no such architecture")

    maker.before_writing = refuse
    with pytest.raises(RequestError):
        ask(cache, model)
    assert cache.models() == []


def test_files_that_go_while_they_are_counted_weigh_nothing(
    cache: ModelCache, model: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(cache, model)
    (cached,) = cache.models()
    whole = cached.size
    walk = os.walk

    def slow_walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for path, folders, names in walk(folder):
            yield path, folders, [*names, ".gone.partial"]

    monkeypatch.setattr(os, "walk", slow_walk)
    assert cached.size == whole > 0


@pytest.mark.parametrize("seconds", [1e15, -1e15, 1e300])
def test_a_time_that_no_calendar_has_is_the_beginning_of_time(
    cache: ModelCache, model: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    ask(cache, model)
    (cached,) = cache.models()
    facts = list(model.stat())
    monkeypatch.setattr(Path, "stat", lambda path: os.stat_result([*facts[:8], seconds, *facts[9:]]))
    assert cached.used.timestamp() == 0


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"name": 1}'])
def test_a_damaged_entry_is_made_again(cache: ModelCache, model: Path, maker: Maker, content: bytes) -> None:
    entry = ask(cache, model).parent / "entry.json"
    entry.write_bytes(content)
    ask(cache, model)
    assert len(maker.made) == 2
    Entry.model_validate_json(entry.read_bytes())


def test_a_planted_link_is_not_written_through(
    cache: ModelCache, model: Path, maker: Maker, tmp_path: Path
) -> None:
    key = ask(cache, model).parent.name
    shutil.rmtree(cache.root / key)
    (tmp_path / "other").mkdir()
    (cache.root / key).symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match="is a link"):
        ask(cache, model)
    assert not list((tmp_path / "other").iterdir())


def test_names_and_keys_find_models(cache: ModelCache, model: Path, maker: Maker) -> None:
    first, second = ask(cache, model), ask(cache, model, Build(Target.CPU, 128))
    found = cache.named(first.parent.name[:8])
    assert found is not None
    assert found.artifact == first
    assert cache.named("huge") is None
    cache.remove(found)
    found = cache.named("tiny-128.gguf")
    assert found is not None
    assert found.artifact == second


def test_removing_leaves_nothing(cache: ModelCache, model: Path, maker: Maker) -> None:
    ask(cache, model)
    (found,) = cache.models()
    cache.remove(found)
    assert not cache.models()
    assert not [path for path in cache.root.iterdir() if path.name.startswith(found.key)]


def test_what_is_being_made_is_not_removed(cache: ModelCache, model: Path, maker: Maker) -> None:
    refused: list[str] = []

    def try_to_remove() -> None:
        (unfinished,) = cache.models()
        with pytest.raises(StorageError, match="is being converted now") as raised:
            cache.remove(unfinished)
        refused.append(str(raised.value))

    maker.before_writing = try_to_remove
    assert ask(cache, model).is_dir()
    assert refused


def test_what_was_used_last_comes_first(cache: ModelCache, model: Path, maker: Maker) -> None:
    first, second = ask(cache, model), ask(cache, model, Build(Target.CPU, 128))
    for seconds, place in ((1000, second), (2000, first)):
        os.utime(place.parent / "entry.json", (seconds, seconds))
    assert [found.artifact for found in cache.models()] == [first, second]
    ask(cache, model, Build(Target.CPU, 128))
    assert [found.artifact for found in cache.models()] == [second, first]


def test_what_is_no_gguf_is_a_folder_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    assert resolve_artifact(tmp_path) == tmp_path
    with pytest.raises(ArtifactError, match="neither a GGUF nor the folder"):
        resolve_artifact(text)
    with pytest.raises(NotFoundError, match="no file, no folder and no model in the cache"):
        resolve_artifact(tmp_path / "missing.gguf")
    with pytest.raises(ArtifactError, match="is not an artifact"):
        resolve_artifact(tmp_path, context=128)
    assert not (tmp_path / "cache").exists()


def test_a_finished_model_goes_by_its_name(
    tmp_path: Path, gguf: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = tmp_path / "tiny.gguf"
    model.write_bytes(gguf.read_bytes())
    made = resolve_artifact(model)
    model.unlink()
    assert resolve_artifact(Path("tiny")) == made


def test_too_little_room_is_told_before_anything_is_written(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage(tmp_path))(1000, 900, 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StorageError, match="anespec rm"):
        prepare_model(gguf, tmp_path / "out" / "model.anespec", BUILD, SILENT)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_golden_gate_is_asked_of_a_gguf_that_is_loaded_and_what_it_fails_is_refused_each_time(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with anespec.load(gguf, gates="now", threads=1) as model:
        path = model.path / "gates" / "golden.json"
        assert model.generate("one", max_tokens=2).text
    golden = json.loads(path.read_text())
    golden["verdicts"][0]["stack"][0]["error"] = 9.0
    path.write_text(json.dumps(golden))
    for when in ("now", "later", "never"):
        with pytest.raises(GoldenGateError, match="does not compute what its GGUF means"):
            anespec.load(gguf, gates=when, threads=1)


def test_asking_from_another_users_cache_is_refused(
    cache: ModelCache, model: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with private_folder(cache.root):
        pass
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(StorageError, match="another user"):
        ask(cache, model)
    assert not maker.made


def test_one_artifact_serves_who_wants_one_sequence_and_who_wants_four(
    cache: ModelCache, model: Path, maker: Maker
) -> None:
    alone = ask(cache, model)
    assert ask(cache, model, Build(Target.CPU, sequences=USUAL_SEQUENCES)) == alone
    assert ask(cache, model, Build(Target.CPU, sequences=2)) == alone
    assert len(maker.made) == 1
    many = ask(cache, model, Build(Target.CPU, sequences=8))
    assert many != alone == ask(cache, model)
    assert ask(cache, model, Build(Target.CPU, sequences=5)) == many
    assert len(maker.made) == 2


def test_where_more_sequences_cost_something_a_number_is_kept_to(
    cache: ModelCache, model: Path, maker: Maker
) -> None:
    alone = ask(cache, model, Build(Target.MAC, sequences=1))
    assert ask(cache, model, Build(Target.MAC)) == alone
    several = ask(cache, model, Build(Target.MAC, sequences=2))
    assert [found.entry.sequences for found in cache.models() if found.entry] == [2, 1]
    cache.remove(next(found for found in cache.models() if found.artifact == alone))
    assert ask(cache, model, Build(Target.MAC, sequences=1)) == several
    assert Build(Target.MAC).built_sequences == USUAL_SEQUENCES


def test_no_more_sequences_are_built_than_a_state_can_have() -> None:
    assert Build.here(1 << 23).built_sequences == 2
    assert Build.here(1 << 24).built_sequences == 1


def test_a_context_that_is_the_usual_one_is_no_other_model(
    cache: ModelCache, model: Path, maker: Maker
) -> None:
    usual = ask(cache, model)
    assert ask(cache, model, Build(Target.CPU, 64)) == usual
    assert ask(cache, model, Build.here(100)) == ask(cache, model, Build.here(128)) != usual
    assert ask(cache, model) == usual
    assert len(maker.made) == 2


def test_a_context_that_is_rounded_up_is_said(
    tmp_path: Path, gguf: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    notes: list[str] = []
    for context in (300, 320):
        resolve_artifact(gguf, context=context, watch=ProgressCallbacks(note=notes.append))
    assert notes == ["a context of 300 tokens is rounded up to 320"]


def test_other_weights_are_another_model(cache: ModelCache, model: Path, maker: Maker) -> None:
    lut6 = WeightChoice.parse("lut6,head=fp16")
    assert ask(cache, model) != ask(cache, model, Build(Target.CPU, weights=lut6))
    assert ask(cache, model, Build(Target.CPU, weights=lut6)).is_dir()
    assert len(maker.made) == 2


def test_what_another_version_has_made_serves_by_its_name_alone(
    cache: ModelCache, model: Path, maker: Maker
) -> None:
    old = ask(cache, model).parent / "entry.json"
    facts = json.loads(old.read_text())
    for name in ("schema_version", "sequences", "weight_choice", "usual_context"):
        del facts[name]
    old.write_text(json.dumps(facts | {"version": "0.0.1"}))
    other = old.parent.rename(old.parent.with_name("f" * 16)) / "model.anespec"
    found = cache.named("tiny")
    assert found is not None
    assert found.artifact == other != ask(cache, model)
    assert len(maker.made) == 2


def test_names_are_unique_and_say_what_tells_models_apart(
    cache: ModelCache, model: Path, maker: Maker
) -> None:
    ask(cache, model)
    ask(cache, model, Build(Target.CPU, 128))
    ask(cache, model, Build(Target.CPU, 128, 8, WeightChoice.parse("lut6,head=fp16")))
    ask(cache, model, Build(Target.MAC))
    model.write_bytes(b"GGUF two")
    other = ask(cache, model)
    names = [found.name for found in cache.models()]
    assert sorted(names[1:]) == ["tiny", "tiny-128", "tiny-lut6+head.fp16-128-x8", "tiny-mac"]
    assert names[0] == f"tiny-{other.parent.name[:6]}"
    assert all(cache.named(name) is not None for name in names)


def test_a_name_that_is_free_is_kept(cache: ModelCache, model: Path, maker: Maker) -> None:
    ask(cache, model)
    (entry,) = (found.entry for found in cache.models() if found.entry)
    assert free_name(entry, "abcdef0123", []) == "tiny"


def test_the_list_shows_what_tells_models_apart_and_names_remove_them(
    tmp_path: Path, maker: Maker, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    for wanted in ({}, {"context": 128, "sequences": 8, "weights": WeightChoice.parse("lut6")}):
        resolve_artifact(gguf, **wanted)
    rows = {
        line.split()[0]: line.split()[4:9]
        for line in CliRunner().invoke(list_models).stdout.splitlines()
        if line.strip().startswith("llama")
    }
    assert rows["llama"] == ["4", "x", "64", "int8-channel", "cpu"]
    assert rows["llama-lut6-128-x8"] == ["8", "x", "128", "lut6", "cpu"]
    told = {
        fact["name"]: fact for fact in json.loads(CliRunner().invoke(list_models, "--json").stdout)["models"]
    }
    assert (told["llama-lut6-128-x8"]["sequences"], told["llama"]["weight_choice"]) == (8, "int8-channel")
    assert CliRunner().invoke(remove_models, ["llama-lut6-128-x8", "--yes"]).exit_code == 0
    assert [found.name for found in ModelCache().models()] == ["llama"]


def test_a_long_context_and_the_disk_are_told(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both before the conversion; the context again when the artifact is used with it, and only then."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    notes: list[str] = []
    watch = ProgressCallbacks(notes.append)
    long = "a context of 4096 is longer than the "
    artifact = resolve_artifact(gguf, context=4096, watch=watch)
    assert [note.startswith(long) for note in notes] == [True, False]
    assert "of disk, and its artifact will take about" in notes[1]
    for model in (gguf, artifact):
        notes.clear()
        resolve_artifact(model, context=4096, watch=watch)
        assert len(notes) == 1 and notes[0].startswith(long)
    notes.clear()
    resolve_artifact(artifact, watch=watch)
    assert notes == []


def test_a_second_model_s_longer_conversion_serves_too(cache: ModelCache, model: Path, maker: Maker) -> None:
    long = ask(cache, model, Build.here(256, longer=True))
    assert ask(cache, model, Build.here(128, longer=True)) == long
    assert ask(cache, model, Build.here(128)) != long, "a model's own context is exact"
    assert ask(cache, model, Build.here(512, longer=True)) != long
    assert len(maker.made) == 3
    on_engine = Build(Target.MAC, 64, longer=True)
    assert not on_engine.is_served_by(
        Entry(
            name="m", source_sha256="0", source_bytes=1, quantisation="F16", weights=("fp16",), bytes=1,
            target=Target.MAC, context=128, version=__version__, schema_version=SCHEMA_VERSION, sequences=1,
            weight_choice=str(on_engine.weights), usual_context=False,
        ),
        "0",
    )  # fmt: skip
