"""A verdict is bound to everything: every field of a real manifest is changed, and none goes unnoticed."""

import hashlib
import json
import types
from collections.abc import Iterator
from copy import deepcopy
from enum import Enum
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from converting import build
from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import Manifest, Target
from anespec.manifests.store import ADDED, UNBOUND, Artifact, manifest_fingerprint
from anespec.system.errors import ArtifactError

FAMILIES = Path(__file__).resolve().parents[1] / "data" / "families"
Step = str | int
Steps = tuple[Step, ...]
Field = tuple[str, str]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[Artifact]:
    """One with two layer and two head shards and two regions, one with rings and per-layer embeddings,
    one with chunks, and one with latents."""
    folder = tmp_path_factory.mktemp("bound")
    tiny = write_gguf(folder / "tiny.gguf", TinyModel(layers=2))
    return [
        Artifact(build(tiny, folder / "a.anespec", topology=(1, 1), head_shards=2, sequences=2).path),
        Artifact(
            build(FAMILIES / "gemma4-ple.gguf", folder / "b.anespec", target=Target.CPU, context=256).path
        ),
        Artifact(build(FAMILIES / "mamba2.gguf", folder / "c.anespec", target=Target.CPU, context=64).path),
        Artifact(
            build(FAMILIES / "deepseek2.gguf", folder / "d.anespec", target=Target.CPU, context=64).path
        ),
    ]


def members(annotation: Any) -> list[Any]:
    """The types that a value may have, without what annotates them."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for argument in get_args(annotation) for member in members(argument)]
    return [annotation]


def is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def fields_of(model: type[BaseModel]) -> set[Field]:
    """Every field of a model and of all models below it."""
    found: set[Field] = set()
    for name, info in model.model_fields.items():
        found.add((model.__name__, name))
        for member in members(info.annotation):
            inner = get_args(member)[:1] if get_origin(member) is tuple else (member,)
            for part in inner:
                for kind in members(part):
                    found |= fields_of(kind) if is_model(kind) else set()
    return found


def other_values(annotation: Any, value: Any) -> Iterator[Any]:
    """JSON values unlike `value` that a field of that type might take."""
    for kind in members(annotation):
        if kind is type(None):
            if value is not None:
                yield None
        elif kind is bool:
            yield not value
        elif kind is int:
            yield from (1, 2) if value is None else (value + 1, value * 2, value - 1)
        elif kind is float:
            yield from (0.5, 2.0) if value is None else (value + 0.5, value * 2, -value)
        elif kind is str:
            yield f"{value or ''}x"
        elif get_origin(kind) is Literal:
            yield f"{value}x"
        elif get_origin(kind) is dict:
            yield value | {"more": "1"}
            yield {}
        elif get_origin(kind) is tuple and value is None:
            yield []
        elif get_origin(kind) is tuple:
            yield value[:-1]
            yield value + value[-1:]
            yield value[::-1]
        elif issubclass(kind, Enum):
            yield from (member.value for member in kind)
        else:
            assert is_model(kind), f"{kind} is a kind of field that this test does not know how to change"
            yield {}


def changes(
    model: type[BaseModel], facts: dict[str, Any], path: Steps = ()
) -> Iterator[tuple[Field, Steps, Any]]:
    """Every field below `facts`, where it stands, and another value for it; of many alike the ends."""
    for name, info in model.model_fields.items():
        # What is left out where it is as usual is bound too.
        value = facts[name] if name in facts else to_jsonable_python(info.default)
        field, place = (model.__name__, name), (*path, name)
        for other in other_values(info.annotation, value):
            if other != value or type(other) is not type(value):
                yield field, place, other
        for member in members(info.annotation):
            if is_model(member) and value is not None:
                yield from changes(member, value, place)
            elif get_origin(member) is tuple and value is not None:
                for kind in members(get_args(member)[0]):
                    for number in sorted({0, len(value) - 1} & set(range(len(value)))):
                        item = value[number]
                        if is_model(kind):
                            yield from changes(kind, item, (*place, number))
                        elif kind is not type(None) and item is not None:
                            for other in other_values(kind, item):
                                if other != item:
                                    yield field, (*place, number), other


def with_change(facts: dict[str, Any], path: Steps, value: Any) -> dict[str, Any]:
    changed = deepcopy(facts)
    part: Any = changed
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return changed


def refused_or(root: Path, facts: dict[str, Any]) -> str | None:
    """The fingerprint with that manifest, or None where it is refused on opening."""
    (root / "manifest.json").write_text(json.dumps(facts))
    try:
        return Artifact(root).fingerprint
    except ArtifactError as error:
        assert "convert the model again" in str(error)
        return None


@pytest.mark.slow
def test_every_field_is_bound_or_refused_or_says_why_not(artifacts: list[Artifact], tmp_path: Path) -> None:
    visited, accepted, unbound = set[Field](), set[Field](), set[str]()
    for artifact in artifacts:
        facts = artifact.manifest.model_dump(mode="json")
        for field, path, value in changes(Manifest, facts):
            visited.add(field)
            found = refused_or(tmp_path, with_change(facts, path, value))
            dotted = ".".join(str(step) for step in path)
            if dotted in UNBOUND:
                assert found == artifact.fingerprint
                unbound.add(dotted)
            else:
                assert found != artifact.fingerprint, f"{dotted} = {value!r} keeps old verdicts"
            if found is not None:
                accepted.add(field)
    assert visited == fields_of(Manifest)
    assert unbound == set(UNBOUND)
    assert {("Manifest", "block"), ("TokensFile", "embedding_scale"), ("SourceFile", "sha256")} <= accepted


@pytest.mark.slow
def test_a_field_added_tomorrow_is_bound(artifacts: list[Artifact]) -> None:
    class Tomorrow(Manifest):
        rounding: str = "nearest"

    facts = artifacts[0].manifest.model_dump()
    kinds = ("nearest", "up")
    found = {manifest_fingerprint(Tomorrow.model_validate(facts | {"rounding": kind})) for kind in kinds}
    assert len(found) == len(kinds)


def field_of(facts: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *parents, field = path.split(".")
    return reduce(getitem, parents, facts), field


@pytest.mark.slow
def test_fields_that_were_added_leave_earlier_fingerprints(artifacts: list[Artifact]) -> None:
    for artifact in artifacts:
        facts = artifact.manifest.model_dump(mode="json")
        for unused in (*UNBOUND, *ADDED):
            section, field = field_of(facts, unused)
            del section[field]
        earlier = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        assert manifest_fingerprint(artifact.manifest) == hashlib.sha256(earlier.encode()).hexdigest()


@pytest.mark.slow
def test_fields_that_were_added_are_bound_once_they_are_used(artifacts: list[Artifact]) -> None:
    used = {"tokens.embedding_norm": 1e-5, "tokens.position_tensor": "position_embd.weight"}
    assert used.keys() == ADDED.keys()
    for path, value in used.items():
        facts = artifacts[0].manifest.model_dump(mode="json")
        section, field = field_of(facts, path)
        assert section[field] == ADDED[path]
        section[field] = value
        assert manifest_fingerprint(Manifest.model_validate(facts)) != artifacts[0].fingerprint


def test_the_fingerprint_does_not_depend_on_how_the_file_is_written(
    artifacts: list[Artifact], tmp_path: Path
) -> None:
    facts = artifacts[0].manifest.model_dump(mode="json")
    backwards = dict(reversed(facts.items()))
    assert refused_or(tmp_path, backwards) == artifacts[0].fingerprint
    sparse = facts | {"hidden_scale": 1}
    del sparse["t_min"]
    assert refused_or(tmp_path, sparse) == artifacts[0].fingerprint
