"""A file of options says what flags say; what is wrong in it is named with the file, the key and the mend."""

import os
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from anespec.cli.main import cli
from anespec.cli.option_flags import with_origin
from anespec.cli.verbs.serve import serve
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.options import ServeOptions
from anespec.serving.config_file import PoolOptions, file_options, read_config
from anespec.serving.request import ServeRequest, firm_options
from anespec.system.errors import StorageError, UsageError
from anespec.system.toml_file import LARGEST_FILE


def write(folder: Path, text: str) -> Path:
    path = folder / "serve.toml"
    path.write_text(text)
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    found = read_config(
        write(
            tmp_path, 'unix = "s"\n[models]\na = "a.anespec"\nb = "Qwen"\nc = { path = "/c", threads = 2 }\n'
        )
    )
    assert found.options == {"unix": tmp_path / "s"}
    assert {name: entry.path for name, entry in found.models.items()} == {
        "a": tmp_path / "a.anespec",
        "b": Path("Qwen"),
        "c": Path("/c"),
    }
    assert found.models["c"].threads == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "there is no option 'prot'; did you mean port?"),
        ("zzz = 1", "there is no option 'zzz'; the options are host, port"),
        ("port = '80'", "port is '80'; it must be an integer between 0 and 65535"),
        ("port = true", "port is True; it must be an integer"),
        ("preload = 'yes'", "preload is 'yes'; it must be true or false"),
        ("unix = 3", "unix is 3; it must be a path"),
        ("allow-host = 'x'", 'allow_host is \'x\'; it must be a list, as in ["one", "two"]'),
        ("backend = 'cuda'", "backend is 'cuda'; it must be auto, worker"),
        ("drafter = 'suffix'", "the draft source suffix was removed; use auto"),
        ("request_seconds = inf", "request_seconds is inf; it must be at most"),
        ("port = 1979-05-27", "it must be an integer"),
        ("memory = 'lots'", "memory: 'lots' is not a size"),
        ("model = ['a=b']", "write models in a table: [models]"),
        ("models = 3", "write [models]"),
        ("[models]\n'' = 'a'", "a model in [models] has an empty name"),
        ("[models]\na = 3", "models.a is neither a path nor a table"),
        ("[models.a]\nthreads = 1", "models.a has no path"),
        ("[models.a]\npath = 'x'\nthread = 1", "models.a: there is no option 'thread'"),
        ("[models.a]\npath = 'x'\nthreads = 0", "models.a: threads is 0"),
        ("=", "is not valid TOML"),
        ("a = " + "[" * 10_000, "is not valid TOML"),
        ("unix = '~nobody-of-that-name/s'", "home"),
        ("[models]\na = '~nobody-of-that-name/m'", "models.a: "),
        ('[models]\na = "a\\u0000b"', "no file can have a name with a NUL"),
        (f"[models]\na = '{'a' * 5000}'", "is not a possible path (File name too long)"),
        ("allow-origin = ['https://page.example/']", "is not a web origin"),
        ("allow-origin = ['*']", "is not a web origin"),
        ("allow-host = ['http://box.example']", "is not a host name"),
        ("allow-host = ['box.example:80']", "is not a host name"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        read_config(path)
    assert str(refused.value).startswith(str(path))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        read_config(tmp_path / "none.toml")


def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is larger than"):
        read_config(write(tmp_path, "#" * (LARGEST_FILE + 1)))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="is a pipe"):
        read_config(tmp_path / "pipe")


def test_a_name_that_no_file_can_have_is_one_sentence() -> None:
    request = ServeRequest(Path("a" * 300), ServeOptions(), PoolOptions(), LoadOptions())
    with pytest.raises(UsageError, match="is not a possible path"):
        request.names(None)


@pytest.mark.slow
@given(st.sampled_from(sorted(file_options())), st.text(max_size=5) | st.integers() | st.booleans())
def test_no_value_is_more_than_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: object
) -> None:
    folder = tmp_path_factory.getbasetemp()
    literal = (
        repr(value).lower() if isinstance(value, bool) else value if isinstance(value, int) else f"{value!a}"
    )
    path = write(folder, f"{name} = {literal}")
    try:
        read_config(path)
    except UsageError as error:
        assert str(error).startswith(f"{path}: ")


def test_every_flag_but_those_about_the_file_may_stand_in_it() -> None:
    flags = {parameter.name for parameter in serve.params}
    about_the_run = {"config", "show_config", "model", "models", "verbose", "quiet", "log_file"}
    about_the_run |= {"install", "uninstall", "print_it", "force"} & flags
    assert flags - about_the_run == set(file_options())


def shown(arguments: list[str], variables: dict[str, str]) -> str:
    outcome = CliRunner().invoke(cli, ["serve", *arguments, "--show-config"], env=variables)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_a_flag_goes_before_the_environment_that_before_the_file_and_that_before_the_default(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, 'port = 1\nqueue = 1\nthreads = 1\nbackend = "torch"\n[models]\na = "a.anespec"\n')
    variables = {
        "ANESPEC_SERVE_PORT": "2",
        "ANESPEC_SERVE_QUEUE": "2",
        "ANESPEC_SERVE_CONFIG": str(path),
        "ANESPEC_SERVE_ALLOW_HOST": "x y",
        "ANESPEC_SERVE_PRELOAD": "true",
    }
    text = shown(["--port", "3"], variables)
    lines = {line.split(" = ")[0]: line for line in text.splitlines() if " = " in line}
    assert lines["port"] == "port = 3  # the command line"
    assert lines["queue"] == "queue = 2  # ANESPEC_SERVE_QUEUE"
    assert lines["allow_host"] == 'allow_host = ["x", "y"]  # ANESPEC_SERVE_ALLOW_HOST'
    assert lines["preload"] == "preload = true  # ANESPEC_SERVE_PRELOAD"
    assert lines["threads"] == f"threads = 1  # {path}"
    assert lines["host"] == 'host = "127.0.0.1"  # default'
    assert tomllib.loads(text)["models"] == {"a": str(tmp_path / "a.anespec")}


def test_what_is_shown_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    first = write(
        tmp_path, 'port = 1\nmemory = "3GB"\n[models]\nq = { path = "q.gguf", threads = 2, context = 64 }\n'
    )
    once = shown(["--config", str(first), "--allow-origin", "http://a"], {})
    second = tmp_path / "shown.toml"
    second.write_text(once)
    again = read_config(second)
    assert again.models["q"] == read_config(first).models["q"]
    assert tomllib.loads(shown(["--config", str(second)], {})) == tomllib.loads(once)


def test_a_wrong_variable_is_named() -> None:
    runner = CliRunner(env={"ANESPEC_SERVE_PORT": "http"})
    refused = runner.invoke(cli, ["serve", "x"], standalone_mode=False).exception
    assert isinstance(refused, click.BadParameter)
    assert "(from the environment variable ANESPEC_SERVE_PORT)" in with_origin(refused).format_message()
    other = CliRunner(env={"ANESPEC_GENERATE_TOP_K": "all"})
    refused = other.invoke(cli, ["generate", "x", "-p", "a"], standalone_mode=False).exception
    assert isinstance(refused, click.BadParameter)
    assert "ANESPEC_GENERATE_TOP_K" in with_origin(refused).format_message()
    typed = runner.invoke(cli, ["serve", "x", "--port", "http"], standalone_mode=False).exception
    assert isinstance(typed, click.BadParameter)
    assert with_origin(typed) is typed


def test_what_a_gguf_is_converted_with_concerns_no_artifact_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.anespec").mkdir()
    (tmp_path / "b.gguf").touch()
    config = read_config(write(tmp_path, '[models]\na = "a.anespec"\nb = "b.gguf"\nc = "hf:o/r/c.gguf"\n'))
    wanted = LoadOptions(context=64, weights="lut6", sequences=2)
    both = ServeRequest(None, ServeOptions(), PoolOptions(), wanted, config).names(config)
    assert {name: source.loading for name, source in both.items()} == {
        "a": LoadOptions(), "b": wanted, "c": wanted,
    }  # fmt: skip
    alone = ServeRequest(tmp_path / "a.anespec", ServeOptions(), PoolOptions(), wanted)
    assert [source.loading for source in alone.names(None).values()] == [wanted], "which is then refused"


def test_flags_come_first_and_go_before_the_file(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, '[models]\na = "/a"\nb = "/b"\n'))
    pool = PoolOptions(models=("b=/other", "c=/c"))
    found = ServeRequest(Path("/d.gguf"), ServeOptions(), pool, LoadOptions(), config).names(config)
    assert [(name, str(source.path)) for name, source in found.items()] == [
        ("d", "/d.gguf"), ("b", "/other"), ("c", "/c"), ("a", "/a"),
    ]  # fmt: skip


def test_no_variable_asks_for_the_version() -> None:
    """A script may well have one of that name."""
    assert "version" not in CliRunner(env={"ANESPEC_VERSION": "1"}).invoke(cli, ["ps"]).output


def test_a_models_own_options_hold_unless_a_flag_says_otherwise(tmp_path: Path) -> None:
    config = read_config(
        write(tmp_path, '[models.a]\npath = "a"\nthreads = 2\nbackend = "torch"\nsequences = 8\n')
    )

    def source(*given: str) -> LoadOptions:
        loading = LoadOptions(threads=1, drafter="none", sequences=2)
        asked = ServeRequest(None, ServeOptions(), PoolOptions(), loading, config, firm_options(given))
        return asked.names(config)["a"].loading

    assert source() == LoadOptions(threads=2, backend="torch", drafter="none", sequences=8)
    assert source("threads", "sequences", "port") == LoadOptions(
        threads=1, backend="torch", drafter="none", sequences=2
    )
