"""Opening an artifact that is not whole: the file and the mismatch are named."""

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from converting import build
from tiny_model import write_gguf

from anespec.manifests.notes import LARGEST_JSON
from anespec.manifests.schema import SCHEMA_VERSION
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, RunEnvironment
from anespec.runtime.backends import open_verifier
from anespec.system.errors import ArtifactError, NotFoundError, StorageError

WEIGHTS = Path("Data", "com.apple.CoreML", "weights", "weight.bin")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    return build(write_gguf(folder / "tiny.gguf"), folder / "m.anespec", topology=(1, 1)).path


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "m.anespec"))


def rewrite(root: Path, **changes: Any) -> None:
    """Replace top-level entries of the manifest."""
    path = root / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_whole_artifact_opens(root: Path) -> None:
    open_verifier(root, "torch", threads=1).close()


def test_a_missing_shard_is_named(root: Path) -> None:
    shutil.rmtree(root / "shards" / "layer_01.mlpackage")
    with pytest.raises(ArtifactError, match=r"layer_01\.mlpackage: the shard is missing; convert"):
        open_verifier(root, "torch")


def test_truncated_weights_are_named_with_both_sizes(root: Path) -> None:
    shard = Artifact(root).manifest.layer_shards[0]
    os.truncate(root / shard.path / WEIGHTS, 100)
    with pytest.raises(
        ArtifactError,
        match=rf"layer_00\.mlpackage: size in bytes is \d+, but the manifest says {shard.bytes};",
    ):
        open_verifier(root, "torch")


def test_a_flipped_bit_is_named_with_both_hashes(root: Path) -> None:
    artifact = Artifact(root)
    shard = artifact.manifest.head_shards[0]
    data = bytearray((root / shard.path / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (root / shard.path / WEIGHTS).write_bytes(data)
    said = rf"head_00\.mlpackage: sha256 is [0-9a-f]{{12}}…, but the manifest says {shard.sha256[:12]}…;"
    with pytest.raises(ArtifactError, match=said):
        artifact.shard_path(shard)
    assert artifact.shard_path(shard, verify=False).is_dir(), "the size alone tells nothing"


def test_hashes_are_taken_from_who_knows_them_and_still_compared(root: Path) -> None:
    class Wrong:
        def file(self, path: Path) -> str:
            return "0" * 64

        def package(self, path: Path) -> str:
            return "1" * 64

    artifact = Artifact(root, Wrong())
    with pytest.raises(ArtifactError, match=r"tokens\.gguf: sha256 is 0000"):
        artifact.tokens_path()
    with pytest.raises(ArtifactError, match=r"head_00\.mlpackage: sha256 is 1111"):
        artifact.shard_path(artifact.manifest.head_shards[0])


def test_a_flipped_bit_of_the_vocabulary_is_named(root: Path) -> None:
    path = root / "tokens.gguf"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"tokens\.gguf: sha256 is .*; the file changed since"):
        Artifact(root).tokens_path()


def test_a_manifest_nested_without_end_is_refused(root: Path) -> None:
    (root / "manifest.json").write_text("[" * 200_000)
    with pytest.raises(ArtifactError, match="is not JSON"):
        Artifact(root)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask_input": "other"}, "the runtime has no input 'attn_mask'"),
        ({"slots": 128, "region_slots": 128}, "regions of 128 slots, not the context"),
        ({"window": 0}, "window is invalid"),
    ],
)
def test_a_pool_that_is_not_the_shards_is_refused(root: Path, changes: dict[str, Any], words: str) -> None:
    pool = json.loads((root / "manifest.json").read_text())["pools"][0]
    rewrite(root, pools=[pool | changes])
    with pytest.raises(ArtifactError, match=words):
        open_verifier(root, "torch")


@pytest.mark.parametrize("change", [{"ropes": []}, {"context": 128}])
def test_a_manifest_of_other_shards_is_refused(root: Path, change: dict[str, Any]) -> None:
    rewrite(root, **change)
    with pytest.raises(ArtifactError, match="convert the model again"):
        open_verifier(root, "torch")


def test_states_that_the_shards_do_not_have_are_refused(root: Path) -> None:
    shards = json.loads((root / "manifest.json").read_text())["layer_shards"]
    shards[0]["states"][0]["name"] = "k_9"
    rewrite(root, layer_shards=shards)
    with pytest.raises(ArtifactError, match=r"state 'k_9' of .* is missing in the program"):
        open_verifier(root, "torch")


def test_a_state_of_an_unknown_kind_is_refused(root: Path) -> None:
    """A later model may carry state that is no K/V per position; taken for that it would run wrongly."""
    shards = json.loads((root / "manifest.json").read_text())["layer_shards"]
    assert shards[0]["states"][0]["kind"] == "kv"
    shards[0]["states"][0]["kind"] = "wavelet"
    rewrite(root, layer_shards=shards)
    with pytest.raises(ArtifactError, match=r"kind is invalid \(Input should be 'kv', .*'conv'.*\); convert"):
        Artifact(root)


@pytest.mark.parametrize("path", ["", "/etc", "a\0b", "x" * 5000, "a//b", "a/"])
def test_paths_that_no_artifact_has_are_refused(root: Path, path: str) -> None:
    tokens = json.loads((root / "manifest.json").read_text())["tokens"]
    rewrite(root, tokens=tokens | {"path": path})
    with pytest.raises(ArtifactError, match=r"tokens\.path is invalid"):
        Artifact(root)


def test_a_renamed_file_of_a_shard_changes_its_hash(root: Path) -> None:
    artifact = Artifact(root)
    shard = artifact.manifest.layer_shards[0]
    file = root / shard.path / WEIGHTS
    file.rename(file.with_name("other.bin"))
    with pytest.raises(ArtifactError, match="sha256"):
        artifact.shard_path(shard)


def test_missing_and_shortened_tokens_are_named(root: Path) -> None:
    artifact = Artifact(root)
    os.truncate(root / "tokens.gguf", 10)
    with pytest.raises(ArtifactError, match=r"tokens\.gguf: size in bytes is 10, but"):
        artifact.tokens_path()
    (root / "tokens.gguf").unlink()
    with pytest.raises(ArtifactError, match=r"tokens\.gguf: is missing"):
        artifact.tokens_path()


@pytest.mark.parametrize(
    "version",
    [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1, str(SCHEMA_VERSION), None, True, float(SCHEMA_VERSION)],
)
def test_another_schema_version_is_refused(root: Path, version: object) -> None:
    rewrite(root, schema_version=version)
    with pytest.raises(
        ArtifactError,
        match=rf"schema version {version}, but this anespec reads {SCHEMA_VERSION}; convert .*--force",
    ):
        Artifact(root)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema_version": 1}', "[" * 100_000, '{"schema_version": "\\ud800"}']
)
def test_a_damaged_manifest_is_refused(root: Path, text: str) -> None:
    (root / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"manifest\.json: .*convert the model again"):
        Artifact(root)


@pytest.mark.parametrize("gate", [False, True], ids=["manifest", "verdicts"])
def test_what_is_no_file_or_far_too_large_is_not_read(root: Path, gate: bool) -> None:
    path = root / ("gates/exactness.json" if gate else "manifest.json")
    path.parent.mkdir(exist_ok=True)

    def refused(words: str) -> None:
        if gate:
            assert not Artifact(root).read_verdicts(ExactnessFile).verdicts
        else:
            with pytest.raises(StorageError, match=words):
                Artifact(root)

    path.unlink(missing_ok=True)
    os.mkfifo(path)
    refused("is a pipe or a device")
    path.unlink()
    path.touch()
    os.truncate(path, LARGEST_JSON + 1)
    refused("is larger than")


@pytest.mark.parametrize("hostile", ["\x1b[2J<script>", "A" * 100_000, "\n\n"])
def test_a_hostile_manifest_is_refused_in_a_printable_sentence(root: Path, hostile: str) -> None:
    shards = json.loads((root / "manifest.json").read_text())["layer_shards"]
    rewrite(root, layer_shards=[shards[0] | {"sha256": hostile}, *shards[1:]])
    artifact = Artifact(root)
    with pytest.raises(ArtifactError, match="manifest says") as caught:
        artifact.shard_path(artifact.manifest.layer_shards[0])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    for change in ({hostile: 1}, {"schema_version": hostile}, {"target": hostile}, {"pools": [hostile]}):
        rewrite(root, **change)
        with pytest.raises(ArtifactError, match="convert the model again") as caught:
            Artifact(root)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000


def test_a_folder_without_a_manifest_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is not an artifact"):
        Artifact(tmp_path)
    with pytest.raises(NotFoundError, match="no such artifact"):
        Artifact(tmp_path / "missing")


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_a_shard_is_made_of_files_alone(root: Path, kind: str) -> None:
    """Of what a link leads to no hash would speak, and a pipe would be waited for."""
    artifact = Artifact(root)
    shard = artifact.manifest.layer_shards[0]
    data = root / shard.path / "Data"
    match kind:
        case "link":
            (data / "more\nlines").symlink_to("/etc/hostname")
        case "folder":
            data.rename(root.parent / "Data")
            data.symlink_to(root.parent / "Data")
        case "pipe":
            os.mkfifo(data / "pipe")
    with pytest.raises(ArtifactError, match="is a link, a pipe or a device") as caught:
        artifact.shard_path(shard, verify=False)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no such names")
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_name_that_is_not_utf8_is_refused(root: Path, is_folder: bool) -> None:
    """It adds no bytes, so that only the hash would tell, and cannot: it is over names in UTF-8."""
    artifact = Artifact(root)
    shard = artifact.manifest.layer_shards[0]
    odd = root / shard.path / os.fsdecode(b"\xff\n")
    odd.mkdir() if is_folder else odd.touch()
    with pytest.raises(ArtifactError, match="not UTF-8") as caught:
        artifact.shard_path(shard)
    assert str(caught.value).isprintable()


def test_verdicts_that_are_recorded_at_the_same_time_are_all_kept(root: Path) -> None:
    """Two runs of the gates, each with a backend of its own."""
    machines = [f"machine {number}" for number in range(40)]

    def record(machine: str) -> None:
        here = RunEnvironment(backend="x", library_version="1", machine=machine, threads=1, artifact="a")
        verdict = ExactnessVerdict(circumstances=here, form="quick", invariances=())
        Artifact(root).record_verdict(ExactnessFile, verdict)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(record, machines))
    verdicts = Artifact(root).read_verdicts(ExactnessFile).verdicts
    assert sorted(verdict.circumstances.machine for verdict in verdicts) == sorted(machines)


@pytest.mark.parametrize("place", ["manifest.json", "gates", "gates/exactness.json"])
def test_nothing_of_an_artifact_is_reached_through_a_link(root: Path, place: str) -> None:
    here = RunEnvironment(backend="x", library_version="1", machine="m", threads=1, artifact="a")
    verdict = ExactnessVerdict(circumstances=here, form="quick", invariances=())
    (root / "gates").mkdir(exist_ok=True)
    (root / "gates" / "exactness.json").write_text('{"verdicts": []}')
    mine = root.parent / "mine"
    (root / place).rename(mine)
    (root / place).symlink_to(mine)
    if place != "manifest.json":
        with pytest.raises(StorageError, match=f"{place}: is a link"):
            Artifact(root).record_verdict(ExactnessFile, verdict)
        kept = mine / "exactness.json" if mine.is_dir() else mine
        assert kept.read_text() == '{"verdicts": []}'
    else:
        with pytest.raises(StorageError, match=r"manifest\.json: is a link"):
            Artifact(root)


@pytest.mark.parametrize("path", ["../outside.mlpackage", "shards/../../outside.mlpackage"])
def test_a_path_that_leaves_the_artifact_is_refused(root: Path, path: str) -> None:
    shutil.copytree(root / "shards" / "layer_00.mlpackage", root.parent / "outside.mlpackage")
    shards = json.loads((root / "manifest.json").read_text())["layer_shards"]
    shards[0]["path"] = path
    rewrite(root, layer_shards=shards)
    with pytest.raises(ArtifactError, match="is outside the artifact"):
        open_verifier(root, "torch")


def test_a_link_that_leaves_the_artifact_is_refused(root: Path) -> None:
    package = root / "shards" / "layer_00.mlpackage"
    package.rename(root.parent / "outside.mlpackage")
    package.symlink_to(root.parent / "outside.mlpackage")
    artifact = Artifact(root)
    with pytest.raises(ArtifactError, match=r"layer_00.mlpackage: is a link"):
        artifact.shard_path(artifact.manifest.layer_shards[0])
