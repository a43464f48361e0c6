"""`import anespec`: what is there, what it loads, and that it does what the verbs do."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import run
from fresh_process import answered_here
from typed_client import continued

import anespec
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.drafters.memory.learner import OpenMemory
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError, UsageError

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

GREEDY = anespec.GenerationOptions(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model(trained: Path) -> Iterator[anespec.Model]:
    """The embedded model, loaded."""
    with answered_here():
        model = anespec.load(trained, threads=1)
    with model:
        yield model


def _modules_after(program: str) -> set[str]:
    program += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_it_loads_nothing() -> None:
    loaded = _modules_after("import anespec") - _modules_after("import typing, importlib")
    assert not {"numpy", "pydantic", "click", "torch", "coremltools", "openvino"} & loaded
    assert not {name for name in loaded if "anespec." in name}


def test_every_public_name_is_there() -> None:
    assert set(anespec.__all__) <= set(dir(anespec))
    assert all(getattr(anespec, name).__doc__ for name in anespec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = anespec.nothing  # type: ignore[attr-defined]


def test_a_typed_program_gets_one_text_four_ways(gguf: Path, tmp_path: Path) -> None:
    texts = continued(gguf, tmp_path)
    assert len(set(texts)) == 1
    assert texts[0]


@pytest.mark.slow
def test_the_library_and_the_verb_give_the_same(model: anespec.Model, trained: Path) -> None:
    flags = ("-n", 12, "--ignore-eos", "--temperature", 0.8, "--seed", 5, "--threads", 1, "--json")
    said = run("generate", trained, "-p", "def area(", *flags).json
    found = model.generate("def area(", GREEDY, temperature=0.8, seed=5)
    assert (found.text, list(found.output_ids)) == (said["text"], said["output_ids"])


@pytest.mark.slow
def test_choices_are_drawn_with_consecutive_seeds(model: anespec.Model) -> None:
    three = model.generate("def ", GREEDY, temperature=1.5, seed=3, choices=3)
    alone = [model.generate("def ", GREEDY, temperature=1.5, seed=seed).text for seed in (3, 4, 5)]
    assert [choice.text for choice in three.choices] == alone
    assert len(set(alone)) == 3
    with pytest.raises(RequestError, match="one choice"):
        model.stream("def ", choices=2)


def test_what_cannot_be_is_refused_before_anything_runs(model: anespec.Model) -> None:
    with pytest.raises(RequestError, match="temperature is 101; it must lie between 0 and 100"):
        model.generate("a", temperature=101)
    with pytest.raises(RequestError, match="no option 'temprature'"):
        model.generate("a", temprature=1)
    with pytest.raises(RequestError, match="the prompt is empty"):
        model.stream([])
    with pytest.raises(RequestError, match="no chat template"):
        model.chat_stream([anespec.Message(role="user", content="a")])
    with pytest.raises(RequestError, match="message 1: there is no key 'contents'"):
        model.chat([{"role": "user", "contents": "a"}])
    with pytest.raises(RequestError, match="threads is 0"):
        anespec.load(model.path, threads=0)
    with pytest.raises(UsageError, match="need --quality TEXT"):
        anespec.validate_model(model.path, max_kl=0.1)


def test_a_stream_that_is_closed_leaves_the_model_free(model: anespec.Model) -> None:
    stream = model.stream("def ", GREEDY)
    next(iter(stream))
    stream.close()  # type: ignore[attr-defined]
    assert model.generate("def ", GREEDY).output_ids


def test_texts_and_tokens(model: anespec.Model) -> None:
    ids = model.tokenize("def area(")
    assert model.detokenize(ids) == "def area("
    assert model.generate(ids, GREEDY).output_ids == model.generate("def area(", GREEDY).output_ids


def test_several_at_once_in_an_event_loop(model: anespec.Model) -> None:
    prompts = ["def ", "class ", "import "]

    async def together() -> list[str]:
        return [found.text for found in await asyncio.gather(*(model.agenerate(p, GREEDY) for p in prompts))]

    assert asyncio.run(together()) == [model.generate(prompt, GREEDY).text for prompt in prompts]


def test_what_is_no_prompt_is_refused(model: anespec.Model) -> None:
    with pytest.raises(RequestError, match="a prompt is a text or token ids, not a value of type int"):
        model.generate(5)  # type: ignore[arg-type]


def test_a_draft_source_is_made_once_and_closed_with_its_model(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[_ClosedSource] = []

    def make(options: anespec.LoadOptions, tokenizer: Tokenizer, open_memory: OpenMemory) -> _ClosedSource:
        made.append(_ClosedSource())
        return made[-1]

    monkeypatch.setattr("anespec.served.start_source", make)
    with anespec.load(trained, threads=1) as model:
        model.generate("Once", GREEDY)
        assert [source.closed for source in made] == [0]
    assert [source.closed for source in made] == [1]


class _ClosedSource(LookupSource):
    """Counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1
