"""Prompts from files and standard input: bounded, checked before any runs, each with options of its own."""

import io
import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import CommandResult, command_of, run
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE
from tiny_model import write_gguf

import anespec.cli.prompts as prompts
from anespec.cli.prompts import LONGEST_LINE, LONGEST_PROMPT, Prompt, PromptFile, standard_input_lines
from anespec.cli.verbs.generate import generate
from anespec.system.errors import RequestError, StorageError

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def _file(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact whose model has a chat template."""
    folder = tmp_path_factory.mktemp("chatting")
    gguf = write_gguf(folder / "m.gguf", metadata={"tokenizer.chat_template": TEMPLATE})
    outcome = run("convert", gguf, "-o", folder / "m.anespec", "--target", "cpu", "--weights", "fp16")
    assert outcome.code == 0, outcome.err
    return folder / "m.anespec"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a", "temprature": 1}', "there is no option 'temprature'; the options are "),
        (
            '{"messages": [{"role": "user", "contents": "a"}]}',
            "there is no key 'contents'; the keys are role",
        ),
        ('{"prompt": "a", "messages": []}', "the conversation is empty"),
        ('{"prompt": "a", "top_p": 5}', "it must lie between 0 and 1"),
        ('{"prompt": "a", "top_p": NaN}', "it must lie between 0 and 1"),
        ('{"prompt": "a", "temperature": Infinity}', "temperature is inf; it must lie between 0 and 100"),
        ('{"prompt": "a", "temperature": "1"}', "temperature is '1'; it must be a number"),
        ('{"prompt": "a", "seed": 1.5}', "seed is 1.5; it must be an integer"),
        ('{"prompt": "a", "logit_bias": {"3": 101}}', "logit_bias of token 3 is 101"),
        ('{"prompt": "a", "logit_bias": {"three": 1}}', "three"),
        ('{"prompt": "a", "max_tokens": -2}', "max_tokens is -2; it must be at least 0"),
        ('{"prompt": "a", "stop": [1]}', "stop"),
        ('{"prompt": null}', 'exactly one of "prompt"'),
        ('{"prompt_ids": [true]}', "prompt_ids.0"),
        ("{" * 100_000, "is not JSON"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str, words: str) -> None:
    with (
        PromptFile(_file(tmp_path, {"prompt": "a"}, line)) as prompts,
        pytest.raises(RequestError, match=r"prompts\.jsonl: line 2[: ]") as caught,
    ):
        list(prompts)
    assert words in str(caught.value)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.integers(1, 3))
def test_what_is_written_is_what_is_read_each_time(texts: list[str], times: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = _file(Path(folder), *({"prompt": text, "seed": i} for i, text in enumerate(texts)))
        with PromptFile(path) as prompts:
            for _ in range(times):
                assert [(prompt.prompt, prompt.seed) for _, prompt in prompts] == [
                    (text, i) for i, text in enumerate(texts)
                ]


def test_a_line_is_bounded_and_the_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    with path.open("w") as stream:
        for _ in range(2):
            stream.write(json.dumps({"prompt": "x" * (LONGEST_LINE // 2)}) + "\n")
            stream.write(json.dumps({"prompt": "y" * (LONGEST_LINE // 2)}) + "\n")
    with PromptFile(path) as prompts:
        assert sum(1 for _ in prompts) == 4
    os.truncate(path, path.stat().st_size + LONGEST_LINE + 2)
    with PromptFile(path) as prompts, pytest.raises(RequestError, match=r"line 5 is longer than 16\.8 MB"):
        list(prompts)


@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
def test_a_prompt_file_that_may_never_end_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="is a pipe or a device"):
        PromptFile(tmp_path / name)


@pytest.mark.slow
def test_standard_input_is_bounded(artifact: Path) -> None:
    command = f"{shlex.join(command_of('generate', artifact, '-p', '-'))} </dev/zero"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=False)
    outcome = CommandResult(done.returncode, done.stdout, done.stderr)
    assert outcome.code == 7
    assert outcome.is_one_sentence(), outcome.err
    assert f"more than {LONGEST_PROMPT / 1e6:.1f} MB" in outcome.err


@pytest.mark.slow
def test_each_line_may_draw_and_end_in_its_own_way(artifact: Path, tmp_path: Path) -> None:
    ids = [5, 17, 300]
    path = _file(
        tmp_path,
        {"prompt_ids": ids},
        {"prompt_ids": ids, "max_tokens": 3},
        {"prompt_ids": ids, "temperature": 2.0, "seed": 7},
        {"prompt_ids": ids, "temperature": 2.0, "seed": 8},
        {"prompt_ids": ids, "logit_bias": {"9": 100}},
        {"prompt_ids": ids, "max_tokens": 1000},
    )
    common = ("-n", 6, "--ignore-eos", "--threads", 1)
    outcome = run("generate", artifact, "--prompt-file", path, *common)
    assert outcome.code == 0, outcome.err
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    plain, short, seven, eight, biased, full = (row["output_ids"] for row in rows)
    assert short == plain[:3]
    assert len({tuple(plain), tuple(seven), tuple(eight)}) == 3
    assert biased == [9] * 6
    assert [row["finish_reason"] for row in rows] == ["length"] * 5 + ["context"]
    assert len(ids) + len(full) == 512

    alone = run("generate", artifact, "--prompt-file", _file(tmp_path, {"prompt_ids": ids}), *common,
                "--logit-bias", "9=100", "--frequency-penalty", "0.5", "--presence-penalty", "1",
                "--temperature", "0")  # fmt: skip
    assert json.loads(alone.out)["output_ids"] == biased


@pytest.mark.fast_only("line0-has token 1000")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"prompt_ids": [10**30]}, "has token 1000"),
        ({"prompt_ids": []}, "the prompt is empty"),
        ({"prompt_ids": [1] * 600}, "has 600 tokens but the context only 512"),
        ({"prompt": "a", "logit_bias": {"99999": 1}}, "the logit bias names token 99999"),
        ({"messages": [{"role": "user", "content": "a"}]}, "this model has no chat template"),
    ],
)
def test_what_only_the_model_can_tell_is_checked_before_any_runs(
    artifact: Path, tmp_path: Path, line: object, words: str
) -> None:
    path = _file(tmp_path, {"prompt": "a"}, line)
    outcome = CliRunner().invoke(generate, [str(artifact), "--prompt-file", str(path), "--threads", "1"])
    assert isinstance(outcome.exception, RequestError)
    assert str(outcome.exception).startswith(f"{path}: line 2: ")
    assert words in str(outcome.exception)
    assert outcome.output == ""


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_a_file_without_a_prompt_is_said_to_be_one(artifact: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    outcome = run("generate", artifact, "--prompt-file", path, "--threads", 1)
    assert outcome.code == 7
    assert outcome.out == ""
    assert f"{path}: has no prompt" in outcome.err


@pytest.mark.slow
def test_messages_go_through_the_template_and_prompts_without_it_get_a_hint(
    chatting: Path, tmp_path: Path
) -> None:
    messages = [{"role": "t3", "content": "t4"}, {"role": "t5", "content": "t6"}]
    outcome = run("generate", chatting, "--prompt-file", _file(tmp_path, {"messages": messages}), "-n", 1)
    assert outcome.code == 0, outcome.err
    assert "--chat" not in outcome.err
    plain = run("generate", chatting, "-p", "t1", "-n", 1, "--json")
    said = [line for line in plain.err.splitlines() if "compiled for this processor" not in line]
    assert len(said) == plain.err.count("--chat") == 1
    assert plain.json["prompt_ids"] != json.loads(outcome.out)["prompt_ids"]
    assert "--chat" not in run("generate", chatting, "-p", "t1", "-n", 1, "--chat").err


@pytest.mark.parametrize("value", ["5", "nan", "inf", "-inf", "x", ""])
@pytest.mark.parametrize(
    "flag", ["--top-p", "--min-p", "--top-k", "--seed", "--presence-penalty", "--frequency-penalty"]
)
def test_a_value_out_of_range_is_wrong_usage(flag: str, value: str) -> None:
    if value == "5" and flag in ("--top-k", "--seed"):
        value = "-5"
    outcome = CliRunner().invoke(generate, ["m.anespec", "-p", "x", f"{flag}={value}"])
    assert outcome.exit_code == 2, outcome.output
    assert f"Invalid value for '{flag}'" in outcome.output
    assert " between " in outcome.output


@pytest.mark.parametrize("value", ["5", "x=1", "5=nan", "5=101", "-1=1", "5="])
def test_a_bias_that_is_none_is_wrong_usage(value: str) -> None:
    outcome = CliRunner().invoke(generate, ["m.anespec", "-p", "x", f"--logit-bias={value}"])
    assert outcome.exit_code == 2, outcome.output
    assert "Invalid value for '--logit-bias'" in outcome.output


@pytest.mark.slow
def test_the_end_of_the_context_is_called_by_its_name(artifact: Path, tmp_path: Path) -> None:
    full = run("generate", artifact, "-p", "hello", "-n", 1000, "--ignore-eos", "--threads", 1)
    assert "(the context of 512 is full)" in full.err
    assert "1 token in 1 pass (length)" in run(
        "generate", artifact, "-p", "hello", "-n", 1, "--threads", 1, "--drafter", "none"
    ).err  # fmt: skip


def test_prompts_have_one_source() -> None:
    assert Prompt(prompt="").prompt == ""
    with pytest.raises(RequestError, match="exactly one"):
        Prompt(prompt="a", prompt_ids=(1,))


def test_lines_of_standard_input_are_bounded_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines_of(data: bytes) -> list[str]:
        monkeypatch.setattr(
            "sys.stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8", errors="surrogateescape")
        )
        return list(standard_input_lines())

    assert lines_of("one\r\n\né".encode()) == ["one\r\n", "\n", "é"]
    with pytest.raises(RequestError, match="UTF-8"):
        lines_of(b"one\n\xff\n")
    monkeypatch.setattr(prompts, "LONGEST_PROMPT", 100)
    with pytest.raises(RequestError, match="shorten"):
        lines_of(b"a" * 101)
