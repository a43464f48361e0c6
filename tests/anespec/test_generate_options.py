"""What `generate` offers beside one continuation: lines together, choices, logprobs, lookup, references."""

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import run
from patience import PATIENCE

import anespec
from anespec.cli.verbs.generate import generate, read_texts
from anespec.runtime.engine.engine import Engine
from anespec.runtime.options import GenerationOptions, LoadOptions
from anespec.runtime.sampling.parameters import GrammarKind
from anespec.system.errors import RequestError

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

PROMPTS = ["def area(", "class Point:", "import os\n", "for i in range(", "self.assertEqual("]
NO_TEXTS = {"json_schema": None, "grammar": None, "regex": None, "reference": None}


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with room for three sequences."""
    from anespec.embedded import model_path

    options = anespec.ConvertOptions(target=anespec.Target.CPU, context=128, sequences=3)
    return anespec.convert_model(model_path(), tmp_path_factory.mktemp("roomy") / "m.anespec", options).path


@contextlib.contextmanager
def held(model: anespec.Model) -> Iterator[None]:
    """Nothing runs before the end of the block, so all that is asked for in it begins together."""
    holding, let_go = threading.Event(), threading.Event()

    def hold(engine: Engine) -> None:
        holding.set()
        assert let_go.wait(PATIENCE)

    with ThreadPoolExecutor(1) as other:
        held = other.submit(model._running.service.call, hold)
        try:
            assert holding.wait(PATIENCE)
            yield
        finally:
            let_go.set()
        held.result(PATIENCE)


@pytest.mark.slow
def test_lines_run_together_and_are_printed_in_their_order(roomy: Path, tmp_path: Path) -> None:
    lines = [{"prompt": text, "max_tokens": 30 - 5 * i, "logprobs": i} for i, text in enumerate(PROMPTS)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    outcome = run(
        "generate", roomy, "--prompt-file", path, "--ignore-eos", "--threads", 1, "--drafter", "none"
    )
    assert outcome.code == 0, outcome.err
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    with anespec.load(roomy, threads=1) as model:
        for number, (row, line) in enumerate(zip(rows, lines, strict=True)):
            alone = model.generate(line["prompt"], max_tokens=line["max_tokens"], ignore_eos=True)
            assert row["text"] == alone.text
            logprobs = row["logprobs"]
            assert [told["id"] for told in logprobs] == row["output_ids"]
            assert all(len(told["top"]) == number and told["logprob"] <= 0 for told in logprobs)
            # Greedy: what was taken is the likeliest.
            assert all(told["top"][0]["id"] == told["id"] for told in logprobs if number)
        before = model.load.passes
        with contextlib.ExitStack() as both:
            with held(model):
                pending = [both.enter_context(model.begin(model.prompt_ids(text))) for text in PROMPTS[:2]]
            shared = [each.result().statistics.passes for each in pending]
        assert model.load.passes - before < sum(shared), shared


@pytest.mark.slow
def test_choices_are_told_apart(trained: Path) -> None:
    words = ("generate", trained, "-p", "def ", "-n", 8, "--temperature", 1.5, "--choices", 3, "--threads", 1)
    facts = run(*words, "--json").json
    assert len({choice["text"] for choice in facts["choices"]}) == 3
    assert facts["text"] == facts["choices"][0]["text"]
    shown = run(*words)
    assert [line for line in shown.err.splitlines() if line.startswith("choice ")] == [
        f"choice {number} of 3:" for number in (1, 2, 3)
    ]
    assert all(choice["text"] in shown.out for choice in facts["choices"])


@pytest.mark.slow
def test_a_reference_and_lookups_limits_change_passes_and_no_token(trained: Path) -> None:
    with anespec.load(trained, threads=1) as model:
        plain = model.generate("def area(", max_tokens=40, speculate=False)
        helped = model.generate("def area(", max_tokens=40, reference=plain.text)
    assert helped.output_ids == plain.output_ids
    assert helped.statistics.accepted > 0
    assert helped.statistics.passes < plain.statistics.passes
    with anespec.load(trained, threads=1, lookup_min=16, lookup_choose="leftmost") as model:
        strict = model.generate("def area(", max_tokens=40)
    assert strict.output_ids == plain.output_ids
    with pytest.raises(RequestError, match="lookup matches are 9 to 3 tokens long"):
        anespec.load(trained, threads=1, lookup_min=9, lookup_max=3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--regex", "a", "--json-schema", "{}"), "give one of --json-schema"),
        (("--logprobs", "3"), "in the output of --json"),
        (("--logprobs", "21", "--json"), "is not between 0 and 20"),
        (("--choices", "0"), "is not between 1 and 128"),
        (("--lookup-choose", "best"), "--lookup-choose"),
        (("--typical-p", "2"), "is not between 0 and 1"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(words: tuple[str, ...], said: str) -> None:
    outcome = CliRunner().invoke(generate, ["m.anespec", "-p", "x", *words])
    assert outcome.exit_code == 2, outcome.output
    assert said in outcome.output


def test_grammars_and_references_are_read_from_files_or_in_place(tmp_path: Path) -> None:
    schema, lark, gbnf = tmp_path / "s.json", tmp_path / "g.lark", tmp_path / "g.gbnf"
    schema.write_text('{"type": "object"}')
    lark.write_text('start: "a"')
    gbnf.write_text('root ::= "a"')
    found = {
        name: read_texts(NO_TEXTS | given)["grammar"]
        for name, given in {
            "file": {"json_schema": str(schema)},
            "text": {"json_schema": ' {"type": "object"}'},
            "lark": {"grammar": lark},
            "gbnf": {"grammar": gbnf},
            "regex": {"regex": "a+"},
        }.items()
    }
    assert [grammar.kind for grammar in found.values()] == [
        *[GrammarKind.JSON_SCHEMA] * 2, GrammarKind.LARK, GrammarKind.GBNF, GrammarKind.REGEX,
    ]  # fmt: skip
    assert found["file"].text == found["text"].text.strip()
    assert read_texts(NO_TEXTS) == {"grammar": None, "reference": ""}
    assert read_texts(NO_TEXTS | {"reference": gbnf})["reference"] == gbnf.read_text()
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(RequestError, match="is not UTF-8 text"):
        read_texts(NO_TEXTS | {"reference": tmp_path / "latin"})


def test_every_option_has_a_flag_that_says_what_it_does() -> None:
    flags = {parameter.name: parameter for parameter in generate.params}
    own = {"speculate", "queue", "show_special", "scores_prompt", "output_seconds", "answers_to", "ends"}
    hidden = own | {"grammar", "reference"}
    for model in (GenerationOptions, LoadOptions):
        for name, field in model.model_fields.items():
            assert field.description, name
            assert name in flags or name in own, name
            if name not in hidden:
                assert field.description in flags[name].help, name


@pytest.mark.slow
def test_an_output_matches_its_grammar_with_and_without_drafts(trained: Path, tmp_path: Path) -> None:
    grammars = {
        r"[0-9]{3}-[a-f]{2}": {"kind": "regex", "text": r"[0-9]{3}-[a-f]{2}"},
        r'\{ ?"n" ?: ?[01] ?\}': {"kind": "lark", "text": 'start: "{" "\\"n\\":" ("0" | "1") "}"'},
        r"yes|no": {"kind": "gbnf", "text": 'root ::= "yes" | "no"'},
    }
    lines = [{"prompt": "x = ", "grammar": grammar} for grammar in grammars.values()]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    drafted, plain = (
        [json.loads(line) for line in run("generate", trained, "--prompt-file", path, *more).out.splitlines()]
        for more in ((), ("--drafter", "none"))
    )
    assert [row["output_ids"] for row in drafted] == [row["output_ids"] for row in plain]
    for pattern, row in zip(grammars, drafted, strict=True):
        assert re.fullmatch(pattern, row["text"]), row["text"]
        assert row["finish_reason"] == "stop"
    bad = run("generate", trained, "-p", "x", "--regex", "[0-9")
    assert (bad.code, bad.is_one_sentence()) == (7, True)
    assert "the regex is not valid" in bad.err


@pytest.mark.slow
def test_the_prompt_may_stand_behind_the_model(trained: Path) -> None:
    options = ("-n", 4, "--threads", 1, "--json")
    behind = run("generate", trained, "Once upon a time", *options).json
    assert (
        behind["output_ids"]
        == run("generate", trained, "-p", "Once upon a time", *options).json["output_ids"]
    )
    for words in ((trained,), (trained, "Once", "-p", "Once")):
        outcome = CliRunner().invoke(generate, [str(word) for word in words])
        assert outcome.exit_code == 2
        assert "prompt" in outcome.output


@pytest.mark.slow
def test_minus_one_goes_on_until_the_context_is_full(trained: Path) -> None:
    found = run("generate", trained, "Once", "-n", -1, "--ignore-eos", "--threads", 1, "--json").json
    assert len(found["prompt_ids"]) + len(found["output_ids"]) == 256
    assert found["finish_reason"] == "context"
    assert GenerationOptions(max_tokens=-1).max_tokens is None
    assert CliRunner().invoke(generate, [str(trained), "Once", "-n", "-2"]).exit_code == 2
