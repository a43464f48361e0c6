"""Prompts of every class fit, and chats stand in the template where there is one."""

from pathlib import Path

import pytest

from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError
from anespec.validate.bench.options import BenchOptions, PromptClass
from anespec.validate.bench.prompts import bench_prompts


def tokenizer_of(path: Path) -> Tokenizer:
    with GGUFFile(path) as file:
        return Tokenizer.from_gguf(file)


def test_each_class_has_two_prompts_that_fit_the_embedded_model() -> None:
    tokenizer = tokenizer_of(model_path())
    prompts = list(bench_prompts(tokenizer, PromptClass, 800))
    assert [str(prompt) for prompt in prompts] == [
        f"{each} {number}" for each in PromptClass for number in (1, 2)
    ]
    assert len({prompt.ids for prompt in prompts}) == 10
    for prompt in prompts:
        assert 20 <= len(prompt.ids) <= 300
        assert prompt.ids[0] == tokenizer.bos_id
        text = tokenizer.decode(prompt.ids)
        # A vocabulary expects the next line's indentation in the same token as the line's end.
        assert not text.endswith(("\n", " "))
    assert tokenizer.decode(prompts[-1].ids).startswith("Question: ")


def test_a_prompt_too_long_for_the_context_is_cut_at_its_beginning() -> None:
    tokenizer = tokenizer_of(model_path())
    (whole, _), (cut, _) = (list(bench_prompts(tokenizer, [PromptClass.EDIT], most)) for most in (800, 9))
    assert cut.ids == whole.ids[-9:]
    with pytest.raises(RequestError, match="ask for shorter answers"):
        list(bench_prompts(tokenizer, [PromptClass.EDIT], 0))


def test_chats_stand_in_the_models_template() -> None:
    tokenizer = tokenizer_of(model_path())
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<bot>"
    first, _ = bench_prompts(tokenizer, [PromptClass.CHAT], 5000)
    text = tokenizer.decode(first.ids)
    assert text.endswith("which?<bot>")
    assert "<user>What is the difference" in text


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"lengths": "48,x"}, "'48,x' is not a list of numbers; write it as 48,144"),
        ({"drafts": "0,2"}, "'0,2' holds no number, or one below 1; give numbers of at least 1"),
        ({"classes": "poem"}, "classes"),
    ],
)
def test_options_that_are_none_are_told_of(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        BenchOptions.model_validate(given)


def test_lists_are_read_from_text() -> None:
    options = BenchOptions.model_validate({"lengths": "9, 3,9", "drafts": "2", "classes": "edit,json"})
    assert (options.lengths, options.drafts) == ((3, 9), (2,))
    assert options.classes == (PromptClass.EDIT, PromptClass.JSON)
