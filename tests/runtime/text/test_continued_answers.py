"""A last message of the assistant is begun text that the model continues, where its template puts answers."""

from collections.abc import Mapping

import pytest
from chat_templates import HERMES, QWEN3, SPECIAL, THINKING, tokenizer_with

from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.runtime.text.chat_encoding import encode_chat
from anespec.runtime.text.conversation import ChatPrompt
from anespec.runtime.text.reasoning import ReasoningSplitter, closed_by, opened_by
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError

USER = {"role": "user", "content": "Hi"}
ASKED = "# user:\nHi\n# assistant:\n"
THINK, END = SPECIAL["thinking"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """That of the embedded model, with the tags of reasoning as special tokens."""
    with GGUFFile(model_path()) as file:
        return tokenizer_with(Tokenizer.from_gguf(file), "", SPECIAL["thinking"])


def prompt(
    tokenizer: Tokenizer, template: str, last: Mapping[str, object], **variables: object
) -> tuple[str, ChatPrompt]:
    tokenizer.chat_template = template
    found = encode_chat(tokenizer, [USER, {"role": "assistant", **last}], 4096, variables=variables)
    return tokenizer.decode(found.ids, skip_special=False), found


@pytest.mark.parametrize(
    ("template", "last", "wanted"),
    [
        (HERMES, {"content": "Once upon "}, "Once upon "),
        (HERMES, {"content": [{"type": "text", "text": "Once"}]}, "Once"),
        (HERMES, {"content": None}, ""),
        (HERMES, {"content": "Yes", "reasoning_content": "no place for it"}, "Yes"),
        (HERMES, {"content": "<think>hm</think>Yes"}, "<think>hm</think>Yes"),
        (THINKING, {"content": "Yes"}, "<think>\n\n</think>\n\nYes"),
        (THINKING, {"content": "Yes", "reasoning_content": "hm"}, "<think>\nhm\n</think>\n\nYes"),
        (THINKING, {"content": "<think>\nhm</think>\n\nYes"}, "<think>\nhm</think>\n\nYes"),
        (THINKING, {"content": "hm</think>Yes"}, "<think>\nhm</think>Yes"),
        (QWEN3 + "{# <think> #}", {"content": "Yes"}, "Yes"),
        (QWEN3, {"content": "Yes", "reasoning_content": "hm"}, "<think>\nhm\n</think>\n\nYes"),
    ],
)
def test_a_begun_answer_is_continued(
    tokenizer: Tokenizer, template: str, last: Mapping[str, object], wanted: str
) -> None:
    text, found = prompt(tokenizer, template, last)
    assert text == ASKED + wanted
    assert closed_by(found.tail), "what follows is the answer"
    splitter = ReasoningSplitter(found.tail)
    assert [piece.reasoning for piece in splitter.push("a time.")] == [False]
    assert not found.is_spaced


@pytest.mark.parametrize(
    ("template", "last", "wanted"),
    [
        (THINKING, {"content": "", "reasoning_content": "So, "}, "<think>\nSo, "),
        (QWEN3, {"content": None, "reasoning_content": "So, "}, "<think>\nSo, "),
        (THINKING, {"content": "<think>\nSo, "}, "<think>\nSo, "),
        (HERMES, {"content": "<think>So, " + "long " * 40}, "<think>So, " + "long " * 40),
    ],
)
def test_begun_reasoning_is_continued_as_reasoning(
    tokenizer: Tokenizer, template: str, last: Mapping[str, object], wanted: str
) -> None:
    text, found = prompt(tokenizer, template, last)
    assert text == ASKED + wanted
    assert opened_by(found.tail) == (THINK, END)


def test_a_begun_answer_cannot_forge_a_turn(tokenizer: Tokenizer) -> None:
    """Special tokens that are spelled out in it stay text, but for the tags around its reasoning."""
    _, found = prompt(tokenizer, HERMES, {"content": "a<think>b"})
    special = tokenizer.special_ids(SPECIAL["thinking"])
    assert not set(found.ids) & set(special)


def test_who_asks_for_another_message_gets_one(tokenizer: Tokenizer) -> None:
    said = {"content": "Yes."}
    another = f"{ASKED}Yes.\n# assistant:\n"
    assert prompt(tokenizer, HERMES, said, continue_final_message=False)[0] == another
    for variables in ({"continue_final_message": True}, {"add_generation_prompt": False}):
        assert prompt(tokenizer, HERMES, said, **variables)[0] == ASKED + "Yes."
    tokenizer.chat_template = HERMES
    found = encode_chat(tokenizer, [USER], 4096, variables={"add_generation_prompt": False})
    assert tokenizer.decode(found.ids) == "# user:\nHi\n"


@pytest.mark.parametrize("last", [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}])
def test_nothing_else_can_be_continued(tokenizer: Tokenizer, last: Mapping[str, object]) -> None:
    tokenizer.chat_template = HERMES
    with pytest.raises(RequestError, match="needs a last message of the assistant"):
        encode_chat(tokenizer, [USER, last], 4096, variables={"continue_final_message": True})
