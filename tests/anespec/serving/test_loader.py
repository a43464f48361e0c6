"""Real models in a pool: in memory they outlive their files, and what was written into is not served."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from converting import build
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.model import Model
from anespec.models.cache import ModelCache
from anespec.models.memory_limit import memory_of
from anespec.runtime.options import LoadOptions
from anespec.serving import residents, start
from anespec.serving.loader import ArtifactLoader
from anespec.serving.pool import ModelLoadError, ModelPool
from anespec.serving.sources import ModelSource
from anespec.system.errors import AnespecError, ArtifactError, StorageError
from anespec.system.progress import SILENT, ProgressCallbacks

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

LOADER = ArtifactLoader(lambda: SILENT)
OPTIONS = LoadOptions(threads=1)


async def answer(pool: ModelPool) -> str:
    async with pool.lease("m") as leased:
        model = cast(Model, leased.model)
        return (await asyncio.to_thread(model.generate, "def ", max_tokens=6)).text


@pytest.mark.slow
def test_files_that_go_harm_nobody_and_those_that_change_are_not_served(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "SECONDS_BETWEEN_LOOKS", 0.0)
    path = Path(shutil.copytree(measured, tmp_path / "m.anespec"))
    hidden = tmp_path / "hidden"

    async def work() -> None:
        pool = ModelPool({"m": ModelSource(path, OPTIONS)}, LOADER)
        text = await answer(pool)
        path.rename(hidden)
        assert await answer(pool) == text
        hidden.rename(path)
        tokens = path / "tokens.gguf"
        with tokens.open("ab") as stream:
            stream.write(b"!")
        with pytest.raises(ModelLoadError, match="the server's log says why") as refused:
            await answer(pool)
        assert isinstance(cause := refused.value.__cause__, ArtifactError)
        assert f"{tokens}: size in bytes is " in str(cause)
        assert pool.loaded == {}
        os.truncate(tokens, tokens.stat().st_size - 1)
        assert await answer(pool) == text
        await pool.close()

    asyncio.run(work())


def test_what_is_found_is_weighed_and_known_again(measured: Path, tmp_path: Path) -> None:
    found = LOADER.find(ModelSource(measured, OPTIONS))
    manifest = Artifact(measured).manifest
    weights = sum(shard.bytes for shard in manifest.shards)
    assert found.memory == memory_of(manifest, "openvino")
    assert found.memory > memory_of(manifest, "coreml") > weights + manifest.state_bytes
    assert found == LOADER.find(ModelSource(measured, OPTIONS))
    assert {mark.path.name for mark in found.files.marks} >= {"manifest.json", "tokens.gguf", "weight.bin"}


def test_loading_goes_by_the_name_that_a_person_gave(measured: Path) -> None:
    titles: list[str] = []

    @contextlib.contextmanager
    def steps(title: str) -> Iterator[Callable[[str], None]]:
        titles.append(title)
        yield lambda note: None

    loader = ArtifactLoader(lambda: ProgressCallbacks(steps=steps))
    source = ModelSource(Path("llama.gguf"), OPTIONS)
    loader.load(source, LOADER.find(ModelSource(measured, OPTIONS))).close()
    assert titles[0] == "loading llama"


def test_a_gguf_is_converted_for_several_at_a_time_unless_somebody_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def refuse(path: Path, **how: Any) -> Path:
        asked.append(how)
        raise StorageError("no room")

    monkeypatch.setattr("anespec.serving.loader.resolve_artifact", refuse)
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"GGUF")
    for path, sequences in ((gguf, None), (gguf, 2), (tmp_path, None)):
        with pytest.raises(StorageError):
            LOADER.find(ModelSource(path, OPTIONS.with_changes(context=64, sequences=sequences)))
    assert [how["sequences"] for how in asked] == [4, 2, None]
    assert {how["context"] for how in asked} == {64}


def test_no_client_waits_for_what_grammars_need_once(measured: Path) -> None:
    async def work() -> None:
        pool = ModelPool({"m": ModelSource(measured, OPTIONS)}, LOADER)
        await start._warm_up(pool, "m", SILENT)
        assert "_grammar_tokens" in vars(pool.loaded["m"])
        await pool.close()

    asyncio.run(work())


def test_a_model_whose_files_are_cut_short_fails_and_is_not_the_daemons_end(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residents, "SECONDS_BETWEEN_LOOKS", 3600.0)
    path = Path(shutil.copytree(measured, tmp_path / "m.anespec"))

    async def work() -> None:
        pool = ModelPool({"m": ModelSource(path, OPTIONS)}, LOADER)
        await answer(pool)
        for file in path.rglob("weight.bin"):
            os.truncate(file, 100)
        os.truncate(path / "tokens.gguf", 100)
        with pytest.raises(AnespecError, match="cut short while"):
            await answer(pool)
        await pool.close()

    asyncio.run(work())


def test_a_gguf_of_the_cache_is_served_with_as_many_sequences_as_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gguf = tmp_path / "tiny.gguf"
    write_gguf(gguf, TinyModel(context=256))
    made = ModelCache().root / "0123456789abcdef" / "model.anespec"
    made.parent.mkdir(parents=True)
    build(gguf, made, target=Target.CPU, context=256, sequences=8)
    monkeypatch.setattr("anespec.serving.loader.resolve_artifact", lambda *_, **__: made)
    usual, all_of_them = (
        LOADER.find(ModelSource(gguf, OPTIONS.with_changes(sequences=asked))) for asked in (None, 8)
    )
    assert (usual.sequences, all_of_them.sequences) == (4, 8)
    taken: list[int | None] = []

    def opened(path: Path, options: LoadOptions, *_: object, **__: object) -> SimpleNamespace:
        taken.append(options.sequences)
        return SimpleNamespace(chat_template="")

    monkeypatch.setattr("anespec.model.load_model", opened)
    LOADER.load(ModelSource(gguf, OPTIONS), usual)
    LOADER.load(ModelSource(gguf, OPTIONS), all_of_them)
    assert taken == [4, 8]
