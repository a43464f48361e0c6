"""Sessions become the requests that they stand for, and what is no session is told of by its line."""

import json
from pathlib import Path

import pytest

from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError, StorageError
from anespec.validate.bench.traces import Session, TraceMessage, read_sessions, requests_of

SHARED = Path(__file__).resolve().parents[3].parent / "shared"


def session(*said: tuple[str, str]) -> Session:
    return Session(messages=tuple(TraceMessage(role=role, content=content) for role, content in said))


@pytest.fixture(scope="module")
def qwen() -> Tokenizer:
    path = SHARED / "tokenizers" / "qwen2.vocab.gguf"
    if not path.exists():
        pytest.skip("needs shared/ beside the repository")
    with GGUFFile(path) as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def plain() -> Tokenizer:
    """A vocabulary without ChatML's markers."""
    with GGUFFile(model_path()) as file:
        return Tokenizer.from_gguf(file)


TWO_TURNS = (("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello you"), ("user", "Bye"))


@pytest.mark.slow
def test_every_answer_is_a_request_after_all_before_it(qwen: Tokenizer) -> None:
    first, second = requests_of(session(*TWO_TURNS, ("assistant", "\nSee you")), qwen)
    assert qwen.decode(first.prompt, skip_special=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert qwen.decode(first.output, skip_special=False) == "Hello you<|im_end|>"
    assert first.output[-1] == first.end == qwen.encode("<|im_end|>", parse_special=True)[0]
    # As the whole conversation is tokenised, but for the seam between the marker and an answer's line end.
    assert second.prompt == (
        *first.prompt, *first.output, *qwen.encode(
            "\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n", parse_special=True
        ),
    )  # fmt: skip
    assert second.category == "other"


@pytest.mark.slow
def test_an_answer_that_quotes_the_end_marker_ends_there(qwen: Tokenizer) -> None:
    (request,) = requests_of(session(("user", "Hi"), ("assistant", "It is <|im_end|> here")), qwen)
    assert qwen.decode(request.output, skip_special=False) == "It is <|im_end|>"


@pytest.mark.slow
def test_an_answer_is_cut_but_later_prompts_hold_it_whole(qwen: Tokenizer) -> None:
    said = (*TWO_TURNS, ("assistant", "so long"))
    (whole, later), (cut, same) = (list(requests_of(session(*said), qwen, most)) for most in (1024, 2))
    assert cut.output == whole.output[:2]
    assert same.prompt == later.prompt


def test_a_vocabulary_without_the_markers_has_them_as_text(plain: Tokenizer) -> None:
    (request,) = requests_of(session(("user", "Hi"), ("assistant", "Hello")), plain)
    assert request.end is None
    assert plain.decode(request.prompt) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert plain.decode(request.output, continues=True) == "Hello<|im_end|>"


def test_sessions_come_in_the_order_of_files_and_lines(tmp_path: Path) -> None:
    lines = [{"id": n, "category": str(n), "messages": [], "model": "x"} for n in range(3)]
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text(f"{json.dumps(lines[0])}\n\n{json.dumps(lines[1])}")
    two.write_text(f"\ufeff{json.dumps(lines[2])}\n")
    assert [each.category for each in read_sessions([two, one])] == ["2", "0", "1"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2 is not JSON; each line is one session as an object"),
        ("[1]", "line 2: input should be an object"),
        ('{"category": "a"}', "line 2: messages is missing"),
        ('{"messages": [{"role": "user"}]}', "line 2: messages.0.content is missing"),
        (
            '{"messages": [{"role": "user", "content": 5}]}',
            "line 2: messages.0.content is 5: input",
        ),
        ('{"messages": [{"role": "user", "content": null}]}', "line 2: messages.0.content is None: input"),
        ('{"category": 5, "messages": []}', "line 2: category is 5: input should be a valid string"),
        ("\udcff", "line 2 is not UTF-8 text; convert the file to UTF-8"),
    ],
)
def test_what_is_no_session_is_told_of_by_its_line(line: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(f'{{"messages": []}}\n{line}\n'.encode(errors="surrogateescape"))
    with pytest.raises(RequestError) as raised:
        list(read_sessions([path]))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"none\.jsonl: cannot be read"):
        list(read_sessions([tmp_path / "none.jsonl"]))
