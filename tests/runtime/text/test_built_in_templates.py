"""The built-in chat templates write what the families' first models were published with."""

from pathlib import Path

import pytest
from chatty_model import write_chatty

from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.runtime.text.chat_encoding import encode_chat
from anespec.runtime.text.templates.built_in import BUILT_IN_TEMPLATES
from anespec.runtime.text.templates.chosen import missing_tokens, read_template, with_template
from anespec.runtime.text.templates.rendering import render_chat
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]

# As the documentation of each family shows them, but for the token that begins the text.
WRITTEN = {
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
    "gemma": "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
    "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
    "llama2": "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] Bye [/INST]",
    "llama3": "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "[INST] Be brief.\n\nHi[/INST] Hello.</s>[INST] Bye[/INST]",
    "phi3": "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello.<|end|>\n"
    "<|user|>\nBye<|end|>\n<|assistant|>\n",
    "plain": "Be brief.\n\nUser: Hi\nAssistant: Hello.\nUser: Bye\nAssistant:",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One with <s> and </s>, and no other special token."""
    with GGUFFile(model_path()) as file:
        return Tokenizer.from_gguf(file)


def test_there_is_an_expectation_for_each() -> None:
    assert set(WRITTEN) == set(BUILT_IN_TEMPLATES)


@pytest.mark.parametrize("name", BUILT_IN_TEMPLATES)
def test_a_conversation_is_written_as_published(name: str) -> None:
    text = BUILT_IN_TEMPLATES[name].text
    assert render_chat(text, TALK, add_generation_prompt=True, bos="<s>", eos="</s>") == WRITTEN[name]


@pytest.mark.parametrize("name", BUILT_IN_TEMPLATES)
def test_a_conversation_without_a_system_prompt_is_written_as_well(name: str) -> None:
    text = BUILT_IN_TEMPLATES[name].text
    found = render_chat(text, TALK[1:2], add_generation_prompt=True, bos="<s>", eos="</s>")
    assert "Hi" in found and "system" not in found and "None" not in found


def test_the_token_that_begins_a_text_is_there_once_where_it_is_wanted(
    tokenizer: Tokenizer,
) -> None:
    assert tokenizer.adds_bos
    for name in BUILT_IN_TEMPLATES:
        ids = encode_chat(with_template(tokenizer, Path(name)), TALK[1:2], 512).ids
        assert (ids[0], ids.count(tokenizer.bos_id or 0)) == (tokenizer.bos_id, 1), name


def test_what_ends_an_answer_and_is_no_token_is_looked_for_as_text(tokenizer: Tokenizer) -> None:
    chatml = with_template(tokenizer, Path("chatml"))
    assert encode_chat(chatml, TALK, 512).ends == ("<|im_end|>",)
    assert encode_chat(with_template(tokenizer, Path("plain")), TALK, 512).ends == ("\nUser:",)


def test_tokens_that_the_vocabulary_does_not_have_are_named(tokenizer: Tokenizer) -> None:
    wanted = {
        "chatml": ("<|im_start|>", "<|im_end|>"),
        "gemma": ("<start_of_turn>", "<end_of_turn>"),
        "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "phi3": ("<|user|>", "<|end|>", "<|assistant|>"),
    }
    for name in BUILT_IN_TEMPLATES:
        assert missing_tokens(with_template(tokenizer, Path(name))) == wanted.get(name, ())


def test_a_file_is_a_template_as_it_is(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    found = with_template(tokenizer, file)
    assert found.chat_template == file.read_text() and found.chat_ends == ()
    assert tokenizer.chat_template is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"{% for m in %}", "own.jinja: "),
        (b"{{ raise_exception('no') }}", "own.jinja: "),
        (
            None,
            "is neither a file nor a built-in chat template; these are chatml, gemma, llama2",
        ),
    ],
)
def test_what_is_no_template_is_refused_by_name(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "own.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RequestError, match=words):
        read_template(file)


def test_the_chosen_one_holds_before_that_of_the_file(tmp_path: Path) -> None:
    with GGUFFile(write_chatty(tmp_path / "chatty.gguf")) as file:
        found = with_template(Tokenizer.from_gguf(file), Path("plain"))
    assert "# user" not in (found.chat_template or "")
