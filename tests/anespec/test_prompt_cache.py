"""A prompt's K/V on disk: the same text as without, and nothing computed that is there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import run
from converting import build
from slow import slow_but

import anespec
from anespec.cli.verbs.generate import use_prompt_cache
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.weight_choice import WeightChoice

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

OPTIONS = anespec.GenerationOptions(max_tokens=12, ignore_eos=True, temperature=0.9, seed=3)


@pytest.fixture(
    scope="module",
    params=slow_but([("llama", "openvino"), ("gemma3", "torch")], ("llama", "openvino")),
    ids="-".join,
)
def loading(
    request: pytest.FixtureRequest, families: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, anespec.LoadOptions]:
    """An artifact, of a model with a ring the second time, and how it is loaded."""
    family, backend = request.param
    path = build(
        families / f"{family}.gguf", tmp_path_factory.mktemp("cached") / "m.anespec", target=Target.CPU,
        weights=WeightChoice(WeightFormat.FP16), context=256,
    ).path  # fmt: skip
    return path, anespec.LoadOptions(backend=backend, threads=1)


@contextmanager
def loaded(loading: tuple[Path, anespec.LoadOptions]) -> Iterator[tuple[anespec.Model, list[str]]]:
    """The model, freshly loaded, and what is noted."""
    with anespec.load(*loading) as model:
        yield model, []


@pytest.mark.slow
def test_a_later_run_goes_on_from_the_file(loading: tuple[Path, anespec.LoadOptions], tmp_path: Path) -> None:
    file = tmp_path / "prompt.kv"
    with loaded(loading) as (model, notes):
        rings = [pool for pool in model.manifest.pools if pool.window is not None]
        prompt = [(7 * i) % 300 + 3 for i in range(230)]
        assert bool(rings) == (model.backend == "torch")
        assert all(pool.region_slots < len(prompt) for pool in rings), "the prompt goes round the ring"
        plain = model.generate(prompt, OPTIONS).output_ids
        longer = model.generate([*prompt, 5, 6], OPTIONS).output_ids
        use_prompt_cache(model, file, prompt, notes.append)
        assert model.generate(prompt, OPTIONS).output_ids == plain
    written = file.read_bytes()
    with loaded(loading) as (model, notes):
        use_prompt_cache(model, file, prompt, notes.append)
        assert notes == [f"{file}: held the whole prompt, 230 tokens"]
        again = model.generate(prompt, OPTIONS)
    assert (again.output_ids, again.statistics.reused_tokens) == (plain, len(prompt) - 1)
    assert file.read_bytes() == written, "what holds the prompt is left alone"
    with loaded(loading) as (model, notes):
        use_prompt_cache(model, file, [*prompt, 5, 6], notes.append)
        grown = model.generate([*prompt, 5, 6], OPTIONS)
        assert grown.output_ids == longer
        assert grown.statistics.reused_tokens == len(prompt) + 1
        use_prompt_cache(model, file, [9, 9, 9], notes.append)
    assert file.read_bytes() != written, "the longer prompt takes the file"
    assert notes == [
        f"{file}: has the prompt's 232 tokens now; it had 230 of them",
        f"{file}: has the prompt's 3 tokens now, in place of another prompt's 232",
    ]


def test_what_cannot_be_used_is_noted_and_written_anew(
    loading: tuple[Path, anespec.LoadOptions], tmp_path: Path
) -> None:
    file, prompt = tmp_path / "prompt.kv", list(range(3, 40))
    with loaded(loading) as (model, notes):
        plain = model.generate(prompt, OPTIONS).output_ids
        use_prompt_cache(model, file, prompt, notes.append)
        whole = file.read_bytes()
        file.write_bytes(whole[:-100])
        use_prompt_cache(model, file, prompt, notes.append)
        assert file.read_bytes() == whole
        assert model.generate(prompt, OPTIONS).output_ids == plain
        use_prompt_cache(model, tmp_path / "full.kv", list(range(3, 259)), notes.append)
    written = f"{file}: has the prompt's 37 tokens now"
    assert notes == [
        written,
        f"{file}: is damaged or incomplete; it is written again",
        written,
        f"{tmp_path / 'full.kv'}: not written, since the prompt leaves no room in the context",
    ]
    assert not (tmp_path / "full.kv").exists()


def test_a_number_that_is_none_is_not_put_into_the_state(
    loading: tuple[Path, anespec.LoadOptions], tmp_path: Path
) -> None:
    from dataclasses import replace

    from anespec.runtime.kv.saved_prefix import read_prefix, write_prefix

    file, prompt = tmp_path / "prompt.kv", list(range(3, 40))
    with loaded(loading) as (model, _):
        plain = model.generate(prompt, OPTIONS).output_ids
        model.save_prompt(file, prompt)
        here = model._running.opened.here
        saved = read_prefix(file, here, 1 << 30)
        first, *others = (array.copy() for array in saved.values[0])
        first[0, 0, 0, 0] = float("nan")
        spoilt = replace(saved, values=((first, *others), *saved.values[1:]))
        short = replace(saved, tokens=saved.tokens[:-1])
        for bad in (spoilt, short, replace(saved, tokens=(*saved.tokens[:-1], 10**6))):
            write_prefix(file, bad, here)
            assert model.restore_prompt(file) == ()
        assert model.generate(prompt, OPTIONS).output_ids == plain


@pytest.mark.slow
def test_the_verb_keeps_a_prompt_and_replaces_nothing_else(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.kv"
    words = ("generate", trained, "-p", "def area(x):\n    return", "-n", 6, "--threads", 1, "--json")
    plain = run(*words).json
    first, again = (run(*words, "--prompt-cache", file).json for _ in range(2))
    assert plain["output_ids"] == first["output_ids"] == again["output_ids"]
    assert again["reused_tokens"] == len(plain["prompt_ids"]) - 1
    file.write_text("mine")
    refused = run(*words[:-1], "--prompt-cache", file)
    assert refused.code == 2
    assert "is not replaced" in refused.err
    assert file.read_text() == "mine"
