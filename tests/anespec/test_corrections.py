"""What a file says wrongly of its special tokens is taken as it is meant, and said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from embedded_variants import LISTS, rewritten
from gguf import GGUFReader

import anespec
from anespec.cli.inspect.verb import inspect
from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.system.progress import ProgressCallbacks

TOKENS, KINDS = LISTS
END = "<|im_end|>"


def variant(path: Path, value: Callable[[str, Any], Any]) -> Path:
    """The embedded model with other values of keys."""
    reader = GGUFReader(model_path())
    tensors = [(each.name, each.data, each.tensor_type) for each in reader.tensors]
    return rewritten(path, reader, value, tensors)


def second_token(prompt: str) -> int:
    """The second token that the embedded model answers."""
    with anespec.load(model_path(), context=64, progress=False) as model:
        return model.generate(prompt, max_tokens=8).output_ids[1]


def with_ordinary_end(path: Path, id: int) -> Path:
    """The embedded model whose token `id` has a text that ends an answer, and is typed as ordinary."""
    with GGUFFile(model_path()) as file:
        text = file.strings(TOKENS)[id]

    def value(key: str, old: Any) -> Any:
        if key == "tokenizer.ggml.merges":
            pairs = [merge.partition(" ") for merge in old]
            return [f"{a} {b}" for a, _, b in pairs if text not in (a, b, a + b)]
        if key == TOKENS:
            return [END if number == id else text for number, text in enumerate(old)]
        return [1 if number == id else kind for number, kind in enumerate(old)] if key == KINDS else old

    return variant(path, value)


def test_inspect_names_tokens_of_the_wrong_type(tmp_path: Path) -> None:
    path = str(with_ordinary_end(tmp_path / "m.gguf", 40))
    said = f"control tokens that the file types as other ones: {END}"
    assert json.loads(CliRunner().invoke(inspect, [path, "--json"]).output)["corrections"] == [said]
    assert said in " ".join(CliRunner().invoke(inspect, [path], terminal_width=300).output.split())
    right = CliRunner().invoke(inspect, [str(model_path()), "--json"]).output
    assert json.loads(right)["corrections"] == []


def test_inspect_names_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    """The embedded model's texts begin with BOS, whose id is needed; that of EOS is not."""

    def with_id(name: str) -> dict[str, Any]:
        key = f"tokenizer.ggml.{name}_token_id"
        path = variant(tmp_path / f"{name}.gguf", lambda each, old: 10**6 if each == key else old)
        found: dict[str, Any] = json.loads(CliRunner().invoke(inspect, [str(path), "--json"]).output)
        return found

    found = with_id("eos")
    assert found["convertible"]
    said = "tokenizer.ggml.eos_token_id is 1000000, outside the vocabulary of"
    assert [text.startswith(said) for text in found["corrections"]] == [True]
    found = with_id("bos")
    assert not found["convertible"]
    assert "'tokenizer.ggml.bos_token_id' is outside the vocabulary" in found["unsupported"][0]


@pytest.mark.slow
def test_an_answer_ends_with_such_a_token(tmp_path: Path) -> None:
    prompt, notes = "def area(", list[str]()
    path = with_ordinary_end(tmp_path / "m.gguf", second_token(prompt))
    watch = ProgressCallbacks(note=notes.append)
    with anespec.load(path, context=64, watch=watch) as model:
        answer = model.generate(prompt, max_tokens=8)
    assert (answer.finish.value, len(answer.output_ids)) == ("stop", 1)
    assert END not in answer.text
    assert any(END in note for note in notes)
