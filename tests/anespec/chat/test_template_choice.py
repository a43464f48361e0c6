"""A chat's template: chosen, or plain text, and settled before anything is converted."""

import json
from pathlib import Path

import httpx
import pytest
from chatty_model import write_chatty
from commands import run
from patience import PATIENCE
from serving import running

import anespec
from anespec.cli.chat.template_choice import with_chat_template
from anespec.embedded import model_path
from anespec.runtime.options import LoadOptions
from anespec.system.errors import RequestError
from anespec.system.progress import ProgressCallbacks

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def told(loading: LoadOptions, gguf: Path) -> tuple[LoadOptions, list[str]]:
    notes: list[str] = []
    return with_chat_template(loading, gguf, notes.append), notes


def test_a_model_without_a_template_gets_plain_text_and_a_hint() -> None:
    found, notes = told(LoadOptions(), model_path())
    assert found.chat_template == Path("plain")
    (note,) = notes
    assert "no chat template" in note and "--chat-template" in note and "chatml" in note


def test_what_the_model_has_and_what_was_chosen_stays(tmp_path: Path) -> None:
    own = LoadOptions()
    assert told(own, write_chatty(tmp_path / "chatty.gguf")) == (own, [])
    chosen = LoadOptions(chat_template=Path("chatml"))
    assert told(chosen, model_path()) == (chosen, [])


@pytest.mark.slow
def test_a_template_that_cannot_be_used_is_refused_before_anything_is_converted(
    cache_of_this_test: Path,
) -> None:
    refusing = write_chatty(cache_of_this_test / "refusing.gguf", "{{ raise_exception('never') }}")
    for arguments, words in (((refusing,), "never"), ((model_path(), "--chat-template", "chatlm"), "chatlm")):
        outcome = run("chat", *arguments, stdin="Hello\n")
        assert outcome.code == 7 and words in outcome.err
        assert "converting" not in outcome.err
    assert not list(cache_of_this_test.rglob("*.anespec"))


@pytest.mark.slow
def test_plain_text_goes_on_and_the_next_line_of_the_user_ends_an_answer(trained: Path) -> None:
    with anespec.load(trained, chat_template="plain", threads=1) as model:
        asked = {"role": "user", "content": "Once upon a time"}
        prompt = model.chat_prompt([asked])
        assert model.tokenizer.decode(prompt.ids) == "User: Once upon a time\nAssistant:"
        whole = model.generate(prompt.ids, max_tokens=24).text
        assert model.chat([asked], max_tokens=24).text == whole
        # The model itself never writes such a line, so what it does write stands for it.
        model.tokenizer.chat_ends = (whole[8:11],)
        assert model.chat([asked], max_tokens=24).text == whole[: whole.index(whole[8:11])]
        assert (
            "".join(chunk.text for chunk in model.chat_stream([asked], max_tokens=24))
            == whole[: whole.index(whole[8:11])]
        )
        with running({"plain": model}) as served:
            found = ask(served.url, [asked])
        assert found == whole[: whole.index(whole[8:11])].removeprefix(" ")


@pytest.mark.slow
def test_the_space_behind_the_name_is_none_of_an_answers_text(trained: Path) -> None:
    """A template writes it before the answers of earlier turns, and the model before its own."""
    asked = [{"role": "user", "content": "Once upon a time"}]
    with (
        anespec.load(trained, chat_template="plain", threads=1) as model,
        running({"plain": model}) as served,
    ):
        prompt = model.chat_prompt(asked)
        assert prompt.is_spaced and not model.tokenizer.decode(prompt.ids).endswith(" ")
        # Whatever this model says, its answer shall begin with a space.
        body = {"messages": asked, "max_tokens": 24, "temperature": 0, "grammar": 'root ::= "  ab" [a-z ]+'}
        whole = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=PATIENCE).json()
        text = whole["choices"][0]["message"]["content"]
        assert text.startswith(" ab")
        told = ""
        with httpx.stream(
            "POST", f"{served.url}/v1/chat/completions", json=body | {"stream": True}, timeout=PATIENCE
        ) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line.removeprefix("data: "))["choices"]
                    told += "".join(choice["delta"].get("content") or "" for choice in choices)
        assert told == text


def ask(url: str, messages: list[dict[str, str]]) -> str:
    body = {"messages": messages, "max_tokens": 24, "temperature": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE).json()
    return str(answer["choices"][0]["message"]["content"])


@pytest.mark.slow
def test_a_chat_over_pipes_answers_without_a_template(trained: Path) -> None:
    outcome = run("chat", trained, "--threads", "1", "-n", "8", stdin="Once upon a time\n")
    assert outcome.code == 0, outcome.err
    assert outcome.out.strip()
    assert outcome.err.count("no chat template") == 1


@pytest.mark.slow
def test_generate_takes_a_template_and_says_which_tokens_the_vocabulary_lacks(trained: Path) -> None:
    options = ("--threads", "1", "-n", "4", "--json")
    outcome = run("generate", trained, "--chat", "--chat-template", "chatml", "-p", "Hi", *options)
    assert outcome.code == 0, outcome.err
    assert "<|im_start|> and <|im_end|>, which this vocabulary does not have" in " ".join(outcome.err.split())
    with anespec.load(trained, threads=1) as model:
        text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        assert tuple(json.loads(outcome.out)["prompt_ids"]) == tuple(model.tokenize(text))


@pytest.mark.slow
def test_loading_tells_of_missing_tokens_and_refuses_what_is_no_template(trained: Path) -> None:
    notes: list[str] = []
    watch = ProgressCallbacks(note=notes.append)
    with anespec.load(trained, chat_template="phi3", threads=1, watch=watch):
        assert any("<|user|>, <|end|> and <|assistant|>" in note for note in notes)
    with pytest.raises(RequestError, match="these are chatml"):
        anespec.load(trained, chat_template="phi4", threads=1)
