"""What --show-config prints is read back as the same configuration."""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anespec.cli.verbs.serve import serve, shown_config
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.options import LoadOptions, WhenGates
from anespec.runtime.server.options import ServeOptions
from anespec.runtime.text.templates.built_in import BUILT_IN_TEMPLATES
from anespec.serving.config_file import ConfigFile, ModelEntry, PoolOptions, file_options, read_config
from anespec.serving.request import ServeRequest
from anespec.system.errors import RequestError
from anespec.system.options import Options, flag_of, range_of, type_of

NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=9
).filter(lambda name: name not in (".", ".."))
"""The names of files: any characters, also quotes, line ends and a leading `~`."""

TEXTS: dict[str, st.SearchStrategy[Any]] = {
    "host": st.sampled_from(["127.0.0.1", "localhost", "::1", "box.example"]),
    "allow_origin": st.lists(st.sampled_from(["https://a.example", "http://b:1"]), max_size=2).map(tuple),
    "allow_host": st.lists(st.sampled_from(["a.example", "b"]), max_size=2).map(tuple),
    "weights": st.sampled_from([WeightChoice.parse(text) for text in ("lut6", "lut4,head=lut6")]),
    "chat_template": st.one_of(st.sampled_from(sorted(BUILT_IN_TEMPLATES)).map(Path), NAMES.map(Path)),
    "draft_memory": st.one_of(st.just(Path("none")), NAMES.map(Path)),
    "draft": st.one_of(st.just(Path("some-name")), NAMES.map(lambda name: Path("/models") / name)),
}


def values_of(group: type[Options], name: str) -> st.SearchStrategy[Any]:
    """Values that an option may have, by its declaration."""
    field = group.model_fields[name]
    kind, limits, flag = type_of(field), range_of(field), flag_of(field)
    if name in TEXTS:
        return TEXTS[name]
    if flag.choices:
        return st.sampled_from(flag.choices)
    if kind is bool:
        return st.booleans()
    if kind is Path:
        return NAMES.map(Path)
    if kind is WhenGates:
        return st.sampled_from(list(WhenGates))
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    lowest, highest = (limits.lowest, limits.highest) if limits else (None, None)
    if kind is int:
        return st.integers(int(lowest or 0), int(highest or 2**40))
    assert kind is float, name
    return st.floats(lowest or 0.0, highest or 1e9)


@st.composite
def options_of(draw: st.DrawFn, group: type[Options]) -> Options:
    """Options of a group, any of them given or not."""
    chosen: dict[str, Any] = {}
    for name in [name for name, owner in file_options().items() if owner is group]:
        if draw(st.booleans()):
            value = draw(values_of(group, name))
            try:
                group(**{**chosen, name: value})
            except RequestError:
                continue  # this value, or this one beside the others, may not be given
            chosen[name] = value
    return group(**chosen)


def printed(asked: ServeRequest) -> str:
    return shown_config(click.Context(serve), asked)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    serving=options_of(ServeOptions),
    pool=options_of(PoolOptions),
    loading=options_of(LoadOptions),
    own=options_of(LoadOptions),
    name=NAMES,
)
def test_what_is_shown_is_read_back(
    tmp_path: Path, serving: Any, pool: Any, loading: Any, own: Any, name: str
) -> None:
    entry = ModelEntry(path=Path("/models/other.gguf"), **set_in(own))
    config = ConfigFile(Path(f"{name}.toml"), {}, {name: entry})
    asked = ServeRequest(Path("/models/m.gguf"), serving, pool, loading, config)
    text = printed(asked)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "shown.toml").write_text(text)
    found = read_config(elsewhere / "shown.toml")
    owners = file_options()
    read: dict[type[Options], Any] = {
        group: group(**{key: value for key, value in found.options.items() if owners[key] is group})
        for group in (ServeOptions, PoolOptions, LoadOptions)
    }
    for group, options in ((ServeOptions, serving), (PoolOptions, pool), (LoadOptions, loading)):
        assert absolute(read[group]) == absolute(options), text
    again = ServeRequest(None, read[ServeOptions], read[PoolOptions], read[LoadOptions], found)
    before, after = asked.names(asked.config), again.names(found)
    assert list(before) == list(after)
    for model, source in before.items():
        assert absolute(after[model].loading) == absolute(source.loading), text


def set_in(options: Options) -> dict[str, Any]:
    """The options that were given."""
    return {name: getattr(options, name) for name in options.model_fields_set}


def absolute(options: Options) -> dict[str, Any]:
    """All options, with paths of files made absolute."""
    found = {name: getattr(options, name) for name in type(options).model_fields}
    return {
        name: value.absolute()
        if isinstance(value, Path) and name != "draft" and str(value) not in BUILT_IN_TEMPLATES
        else value
        for name, value in found.items()
    }


@pytest.mark.parametrize("gates", list(WhenGates))
@pytest.mark.parametrize("table", ["", "[models.a]\npath = '/a'\n"])
def test_when_gates_run_is_read(tmp_path: Path, gates: WhenGates, table: str) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(f'{table}gates = "{gates.value}"\n')
    found = read_config(path)
    assert (found.models["a"].gates if table else found.options["gates"]) == gates
