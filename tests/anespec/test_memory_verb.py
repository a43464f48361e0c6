"""`anespec memory`: what is kept is told, removed for good, and learnt elsewhere, whatever the vocabulary."""

import json
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import CommandResult, run
from toy_learner import ToyLearner

from anespec.cli.memory import file as memory_file
from anespec.cli.memory.file import TextFile
from anespec.embedded import model_path
from anespec.models.draft_memory import memory_folder
from anespec.models.vocabularies import read_tokenizer
from anespec.runtime.drafters.memory.request_record import RequestRecord
from anespec.runtime.drafters.memory.store import DraftMemoryStore, vocabulary_key
from anespec.runtime.drafters.memory.used_models import Model
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.system.errors import StorageError

QUESTION, ANSWER = "Who goes there?", " Nobody, as ever."


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield


@pytest.fixture
def other() -> Path:
    """A model of another vocabulary."""
    return model_path()


def key_of(gguf: Path) -> str:
    return vocabulary_key(read_tokenizer(gguf).vocabulary_hash)


def learnt(gguf: Path, owner: str = "", question: str = QUESTION) -> VocabularyMemory:
    """Have an owner ask a question, and be answered."""
    tokenizer = read_tokenizer(gguf)
    model = Model(name=gguf.stem, path=str(gguf))
    memory = VocabularyMemory(ToyLearner(), 4096, key_of(gguf), memory_folder(), model=model)
    prompt = tokenizer.encode(question)
    memory.of(owner).fold(
        np.array(prompt + tokenizer.encode(ANSWER, add_special=False), np.int32), len(prompt)
    )
    memory.close()
    return memory


def shown(*arguments: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run("memory", "show", *arguments, "--json").json["memories"]
    return found


def texts_of(gguf: Path, owner: str = "") -> list[str]:
    tokenizer, store = read_tokenizer(gguf), DraftMemoryStore(memory_folder())
    return [
        tokenizer.decode(request.text.tolist())
        for kept in store.kept()
        if (kept.vocabulary, kept.name) == (key_of(gguf), owner)
        for request in store.requests(kept)
    ]


def refused(outcome: CommandResult, code: int, said: str) -> None:
    assert outcome.code == code, outcome.err
    assert outcome.is_one_sentence(), outcome.err
    assert said in outcome.err


def test_what_is_kept_is_told(gguf: Path) -> None:
    assert run("memory", "show").out.startswith("Nothing is remembered")
    assert shown() == []
    learnt(gguf)
    learnt(gguf, "bob")
    assert {(each["owner"], each["requests"]) for each in shown()} == {("", 1), ("bob", 1)}
    assert {each["vocabulary"] for each in shown()} == {key_of(gguf)}
    assert {tuple(each["models"]) for each in shown()} == {("llama",)}
    table = run("memory", "show").out
    assert "llama" in table and "(no key)" in table and "bob" in table and key_of(gguf)[:8] in table


def test_models_of_one_name_are_told_once(gguf: Path, tmp_path: Path) -> None:
    learnt(gguf)
    copy = tmp_path / "elsewhere" / gguf.name
    copy.parent.mkdir()
    copy.write_bytes(gguf.read_bytes())
    learnt(copy)
    assert [kept["models"] for kept in shown()] == [[gguf.stem]]
    assert f"{gguf.stem} and" not in run("memory", "show").out


def test_it_is_removed_of_one_or_of_all(gguf: Path, other: Path) -> None:
    for owner in ("", "bob"):
        learnt(gguf, owner)
        learnt(other, owner)
    nobody = run("memory", "clear", "--all", "--owner", "bob")
    assert nobody.code == 2 and "error: there is no answer on standard input; pass --yes" in nobody.err
    asked = run("memory", "clear", "--all", "--owner", "bob", stdin="n\n")
    assert asked.code == 130 and "Forget 2 requests?" in asked.err
    assert len(shown()) == 4
    assert len(run("memory", "clear", gguf, "--owner", "bob", "-y", "--json").json["removed"]) == 1
    assert (texts_of(gguf, "bob"), len(texts_of(gguf)), len(texts_of(other, "bob"))) == ([], 1, 1)
    assert run("memory", "clear", key_of(other)[:6], stdin="y\n").code == 0
    assert [each["vocabulary"] for each in shown()] == [key_of(gguf)]
    assert run("memory", "clear", "--all", "-y").code == 0
    assert shown() == []
    assert not list(memory_folder().rglob("*.*"))
    assert run("memory", "clear", "--all", "-y", "--json").json == {"removed": [], "bytes": 0}


@pytest.mark.slow
def test_the_same_vocabulary_takes_the_tokens_as_they_are(gguf: Path, tmp_path: Path) -> None:
    learnt(gguf, "bob")
    file = tmp_path / "texts.jsonl"
    done = run("memory", "export", "llama", file, "--owner", "bob", "--json").json
    assert (done["requests"], done["vocabulary"], done["bytes"]) == (1, key_of(gguf), file.stat().st_size)
    assert file.stat().st_mode & 0o077 == 0
    refused(run("memory", "export", "llama", file, "--owner", "bob"), 2, "exists already; pass --force")
    assert run("memory", "export", "llama", file, "--owner", "bob", "--force").code == 0
    assert run("memory", "import", file, "--json").json["requests"] == 1
    assert texts_of(gguf) == texts_of(gguf, "bob") == [QUESTION + ANSWER]
    memory = VocabularyMemory(ToyLearner(), 4096, key_of(gguf), memory_folder())
    assert memory.of("").image.tobytes() == memory.of("bob").image.tobytes()
    memory.close()


@pytest.mark.slow
def test_another_vocabulary_reads_the_texts(gguf: Path, other: Path, tmp_path: Path) -> None:
    learnt(gguf)
    file = tmp_path / "texts.jsonl"
    assert run("memory", "export", gguf, file).code == 0
    assert run("memory", "import", file, other).code == 0
    assert texts_of(other) == [QUESTION + ANSWER]
    run("memory", "clear", "--all", "-y")
    refused(run("memory", "import", file), 2, "name a model after it")


@pytest.mark.slow
def test_sessions_are_learnt_answer_by_answer(gguf: Path, other: Path, tmp_path: Path) -> None:
    messages = [("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four")]
    session = {"id": 1, "messages": [{"role": role, "content": text} for role, text in messages]}
    file = tmp_path / "sessions.jsonl"
    file.write_text(f"{json.dumps(session)}\n\n{json.dumps(session)}\n")
    learnt(gguf, "bob 0a1b2c3d")
    refused(run("memory", "import", file), 2, "which need a model")
    assert run("memory", "import", file, other, "--owner", "bob", "--json").json["requests"] == 4
    first, second = texts_of(other, "bob 0a1b2c3d")[:2]
    assert first.endswith("two") and "three" not in first
    assert second.endswith("four") and "two" in second


@pytest.mark.slow
def test_much_is_learnt_at_once(other: Path, tmp_path: Path) -> None:
    texts = [" ".join(str(number * step) for step in range(1, 400)) for number in range(40)]
    file = tmp_path / "sessions.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]}
        for text in texts
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert run("memory", "import", file, other).code == 0
    (kept,) = shown()
    assert kept["requests"] == 40 and kept["nodes"] > 1000
    assert kept["models"] == [other.stem]
    assert run("memory", "export", kept["vocabulary"], tmp_path / "out").code == 0


@pytest.mark.fast_only('{"prompt": "a"}\\n-is neither an export')
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"GGUF\x00\xff\n", "is neither an export"),
        (b'{"prompt": "a"}\n', "is neither an export"),
        (b'{"messages": [{"role": "user", "content": null}]}\n', "with texts for both"),
        (b'{"anespec_memory": 2, "vocabulary": "0"}\n', "another version of anespec"),
        (b'{"anespec_memory": 1, "vocabulary": "0"}\n{"prompt": "a"}\n', "line 2 is not an object with"),
        (b'{"messages": []}\n{"messages": 1}\n', "line 2 is not an object with messages"),
    ],
)
def test_a_file_of_nonsense_is_refused(content: bytes, said: str, gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    refused(run("memory", "import", file, gguf), 7, said)
    assert shown() == []


@pytest.mark.parametrize("tokens", ["AAA", "!!!!", "AAAAgA==", "/////w==", "", "AAEAfw=="])
def test_tokens_that_cannot_be_are_refused(tokens: str, gguf: Path, tmp_path: Path) -> None:
    header = {"anespec_memory": 1, "vocabulary": key_of(gguf)}
    line = {"prompt": "", "output": "x", "tokens": tokens, "answer": 0}
    file = tmp_path / "file"
    file.write_text(f"{json.dumps(header)}\n{json.dumps(line)}\n")
    refused(run("memory", "import", file, gguf), 7, "line 2 has")


def test_what_is_not_there_is_said(gguf: Path, tmp_path: Path) -> None:
    refused(run("memory", "export", gguf, tmp_path / "f"), 7, "the memory has no request of yours")
    refused(run("memory", "clear", "nothing-such", "-y"), 8, "is not a model, and the memory has nothing")
    refused(run("memory", "import", tmp_path / "f", gguf), 8, "cannot be read")
    refused(run("memory", "export", "nothing-such", tmp_path / "f"), 8, "is not a model")
    assert "not both" in run("memory", "clear", gguf, "--all", "-y").err


@pytest.mark.slow
def test_a_key_is_known_by_its_name_as_long_as_one_has_had_it(gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    learnt(gguf, "bob 00000001")
    assert run("memory", "export", gguf, file, "--owner", "bob").code == 0
    refused(run("memory", "import", file, "--owner", "eve"), 7, "the memory has no requests of 'eve'")
    assert run("memory", "import", file, "--owner", "bob").code == 0
    learnt(gguf, "bob 00000002")
    refused(run("memory", "import", file, "--owner", "bob"), 7, "give one of: bob 00000001, bob 00000002")
    assert run("memory", "import", file, "--owner", "bob 00000002").code == 0
    assert sorted((each["owner"], each["requests"]) for each in shown()) == [
        ("bob 00000001", 2), ("bob 00000002", 2),
    ]  # fmt: skip
    assert len(run("memory", "clear", gguf, "--owner", "bob", "-y", "--json").json["removed"]) == 2


def test_it_is_not_removed_under_who_uses_it(gguf: Path, tmp_path: Path) -> None:
    learnt(gguf)
    memory = VocabularyMemory(ToyLearner(), 4096, key_of(gguf), memory_folder())
    memory.of("")
    refused(
        run("memory", "clear", "--all", "-y"),
        6,
        "another anespec (`anespec ps` shows the daemons) is running there",
    )
    memory.close()


def test_another_folder_is_another_memory(gguf: Path, tmp_path: Path) -> None:
    learnt(gguf)
    assert shown("--draft-memory", tmp_path / "elsewhere") == []


def test_what_is_no_memory_is_in_nobodys_way_and_is_removed(gguf: Path, tmp_path: Path) -> None:
    learnt(gguf, "bob")
    place = memory_folder() / key_of(gguf)
    (memory_folder() / "0123456789abcdef").write_text("no folder")
    damaged = memory_folder() / ("f" * 16) / "memory.sqlite"
    damaged.parent.mkdir()
    damaged.write_bytes(b"no database")
    (place / ("b" * 32)).symlink_to(tmp_path)
    assert [(each["owner"], each["requests"], each["bytes"] > 0) for each in shown()] == [
        ("bob", 1, True), ("", 0, True),
    ]  # fmt: skip
    refused(run("memory", "export", "f" * 16, tmp_path / "out"), 6, "memory.sqlite: is damaged; remove it")
    assert run("memory", "clear", "--all", "-y").code == 0
    assert shown() == [] and not damaged.exists()


@pytest.mark.slow
def test_a_folder_that_a_person_names_is_left_as_it_is(gguf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "anespec" / "memories"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent):
        path.chmod(0o755)
    assert run("memory", "show", "--draft-memory", folder).out.startswith("Nothing is remembered")
    (tmp_path / "sessions.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    done = run("memory", "import", tmp_path / "sessions.jsonl", gguf, "--draft-memory", folder)
    assert done.code == 0, done.err
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o755, 0o755]
    assert (folder / key_of(gguf)).stat().st_mode & 0o077 == 0


def test_of_a_long_session_the_last_answers_are_learnt(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer is learnt with all that came before it, so that all of them would take for ever."""
    monkeypatch.setattr(memory_file, "TEXT_BYTES", 4000)
    messages = [{"role": "assistant", "content": f"answer {number}"} for number in range(400)]
    (tmp_path / "long.jsonl").write_text(json.dumps({"messages": messages}))
    tokenizer = read_tokenizer(gguf)
    found = list(TextFile(tmp_path / "long.jsonl").requests(key_of(gguf), tokenizer))
    assert 1 <= len(found) <= 3
    assert [tokenizer.decode(each.text[each.answer :].tolist()) for each in found[-1:]] == ["answer 399"]
    monkeypatch.setattr(memory_file, "LONGEST_PROMPT", 100)
    (cut, *_) = TextFile(tmp_path / "long.jsonl").requests(key_of(gguf), tokenizer)
    assert cut.answer <= 100


def test_a_full_disk_leaves_nothing_of_an_import(gguf: Path) -> None:
    learnt(gguf)
    store = DraftMemoryStore(memory_folder())
    tokens = np.random.default_rng(0).integers(0, 1 << 30, 50_000, dtype=np.int32)  # they do not compress
    record = RequestRecord(tokens, 1)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max(path.stat().st_size for path in memory_folder().rglob("memory.*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, limit[1]))
    try:
        with pytest.raises(StorageError, match="cannot be used"):
            store.add(key_of(gguf), "", [record] * 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert texts_of(gguf) == [QUESTION + ANSWER]


def test_a_model_that_cannot_be_is_none(gguf: Path, tmp_path: Path) -> None:
    learnt(gguf)
    with closing(sqlite3.connect(memory_folder() / key_of(gguf) / "memory.sqlite")) as database, database:
        database.execute(
            "UPDATE info SET models = ?", (json.dumps({"models": [{"name": "a", "path": "\0"}]}),)
        )
    refused(run("memory", "export", key_of(gguf), tmp_path / "out"), 7, "no model that used")
