"""What of a conversation the model sees, and the file it is saved to."""

import json
import stat
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedModel

from anespec.cli.chat.model import Messages
from anespec.cli.chat.transcript import Transcript, Turn
from anespec.runtime.text.conversation import TRIM_ABOVE, TRIM_TARGET, ChatPrompt
from anespec.system.errors import AnespecError, PromptTooLongError, RequestError, StorageError, UsageError

TURNS = [Turn("one", "first answer"), Turn("two", "second", "thought")]
text = st.text(st.characters(codec="utf-8"), max_size=20)


def test_all_turns_are_seen_while_they_fit() -> None:
    model, transcript = ScriptedModel(), Transcript("Be brief", list(TURNS))
    transcript.fit(model, "three")
    assert model.last_messages == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "first answer"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "second", "reasoning_content": "thought"},
        {"role": "user", "content": "three"},
    ]
    assert transcript.forgotten == 0


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(0, 30), st.integers(20, 100))
def test_the_oldest_turns_go_and_the_system_prompt_stays(sizes: list[int], last: int, context: int) -> None:
    turns = [Turn("u " * size, "a " * size) for size in sizes]
    model, transcript = ScriptedModel(context=context), Transcript("be brief", turns)
    try:
        prompt = transcript.fit(model, "x " * last)
    except PromptTooLongError:
        assert 4 + 2 + last > context - 2
        return
    kept = turns[transcript.forgotten :]
    assert [m["content"] for m in model.last_messages if m["role"] == "user"][:-1] == [t.user for t in kept]
    assert model.last_messages[0] == {"role": "system", "content": "be brief"}
    share = TRIM_ABOVE if transcript.forgotten == 0 else TRIM_TARGET
    assert not kept or len(prompt.ids) <= share * context
    assert len(transcript.turns) == len(turns)


def test_a_full_conversation_is_not_cut_again_at_once() -> None:
    model, transcript = ScriptedModel(context=100), Transcript()
    cuts = []
    for number in range(40):
        transcript.fit(model, f"message {number}")
        transcript.turns.append(Turn(f"message {number}", "four words of answer"))
        cuts.append(transcript.forgotten)
    changes = [a != b for a, b in pairwise(cuts)]
    assert 0 < sum(changes) < len(changes) / 2


def test_what_is_taken_back_lets_older_turns_in_again() -> None:
    model, transcript = ScriptedModel(context=40), Transcript(turns=[*TURNS, Turn("x " * 20, "y")])
    transcript.fit(model, "more")
    assert transcript.forgotten > 0
    transcript.undo()
    transcript.fit(model, "more")
    assert transcript.forgotten == 0


@pytest.mark.slow
@settings(max_examples=20)
@given(st.none() | text, st.lists(st.builds(Turn, text, text, st.none() | text), max_size=4))
def test_a_saved_conversation_is_the_one_that_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, system: str | None, turns: list[Turn]
) -> None:
    path = tmp_path_factory.getbasetemp() / "conversation.json"
    Transcript(system, turns, forgotten=len(turns)).save(path)
    assert Transcript.load(path) == Transcript(system, turns)


def test_a_saved_conversation_is_private_and_a_line_for_generate(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    Transcript("Be brief", list(TURNS)).save(path)
    Transcript("Be brief", list(TURNS)).save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().splitlines()) == 1
    assert json.loads(path.read_text())["messages"][0] == {"role": "system", "content": "Be brief"}


def test_no_other_file_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("GGUF")
    with pytest.raises(UsageError, match="is not replaced"):
        Transcript().save(path)
    assert path.read_text() == "GGUF"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"messages": [{"role": "tool"}]}', "\xff"])
def test_what_is_no_conversation_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(content, "latin-1")
    with pytest.raises(RequestError, match="not a saved conversation"):
        Transcript.load(path)


@pytest.mark.parametrize("roles", [["user"], ["assistant", "user"], ["user", "user"], ["user", "system"]])
def test_turns_must_alternate(tmp_path: Path, roles: list[str]) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"messages": [{"role": role, "content": "x"} for role in roles]}))
    with pytest.raises(RequestError, match="turns"):
        Transcript.load(path)


@pytest.mark.parametrize("act", [Transcript.load, lambda path: Transcript().save(path)])
def test_a_place_that_cannot_be_used_is_a_sentence(tmp_path: Path, act: object) -> None:
    assert callable(act)
    with pytest.raises(StorageError):
        act(tmp_path / "missing" / "c.json")
    with pytest.raises(AnespecError):
        act(tmp_path)


def test_a_conversation_of_many_turns_is_cut_with_few_tries() -> None:
    model, transcript = CountingModel(context=100), Transcript(turns=[Turn("a b", "c")] * 10_000)
    transcript.fit(model, "x")
    assert model.prompts < 20
    assert transcript.forgotten == 10_000 - 6


class CountingModel(ScriptedModel):
    """Counts the prompts that were made."""

    prompts = 0

    def prompt(self, messages: Messages) -> ChatPrompt:
        self.prompts += 1
        return super().prompt(messages)


def test_text_that_no_file_holds_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        Transcript("\udcff").save(tmp_path / "c.json")
    assert not list(tmp_path.iterdir())
