"""The training script on a tiny scale: it learns, stops, resumes, and writes a GGUF that reads back."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import dequantize, quantize
from gguf.constants import GGMLQuantizationType
from tokenizers import Tokenizer

from anespec.embedded.corpus import (
    HELD_OUT,
    Document,
    consecutive_windows,
    end_of_text,
    random_windows,
    split,
    standard_library,
    token_stream,
    train_tokenizer,
)
from anespec.embedded.gguf_export import read_network, read_tokenizer, write_gguf
from anespec.embedded.network import Network
from anespec.embedded.shape import Shape
from anespec.embedded.train import CHECKPOINT, Recipe, Streams, Training, run, validation_loss
from anespec.gguf.container import GGUFFile

VOCABULARY = 384
TINY = Shape(vocabulary=VOCABULARY, width=32, layers=2, heads=2, kv_heads=1, feed_forward=64, context=64)
# Its time is so long that the schedule stands still at the peak rate while a test makes a few steps.
RECIPE = Recipe(minutes=600.0, tokens_per_step=256, short_length=32, long_length=64, warmup_share=1e-9)


@pytest.fixture(scope="module")
def sources() -> list[Document]:
    return [source for source in standard_library() if source.name.startswith("json/")]


@pytest.fixture(scope="module")
def tokenizer(sources: list[Document]) -> Tokenizer:
    return train_tokenizer(sources, VOCABULARY)


@pytest.fixture(scope="module")
def streams(sources: list[Document], tokenizer: Tokenizer) -> Streams:
    training, held_out = token_stream(sources[1:], tokenizer), token_stream(sources[:1], tokenizer)
    return Streams(training, held_out, end_of_text(tokenizer))


def tiny_training(recipe: Recipe = RECIPE) -> Training:
    torch.manual_seed(0)
    return Training(Network(TINY), recipe, torch.device("cpu"))


@pytest.mark.slow
def test_corpus_leaves_out_tests_tables_and_other_peoples_packages() -> None:
    names = {source.name for source in standard_library()}
    assert {"argparse.py", "json/decoder.py", "ipaddress.py"} <= names
    unwanted = {"site-packages", "test", "tests", "idlelib", "encodings", "pydoc_data"}
    assert not [name for name in names if unwanted & set(name.split("/"))]


def test_held_out_files_are_one_to_three_percent_and_never_learnt() -> None:
    learn, held_out = split(standard_library())
    assert {source.name for source in held_out} == set(HELD_OUT)
    assert not {source.text for source in held_out} & {source.text for source in learn}
    size, total = (sum(len(source.text) for source in part) for part in (held_out, learn))
    assert 0.01 < size / total < 0.03


def test_every_document_begins_with_the_end_of_text(sources: list[Document], tokenizer: Tokenizer) -> None:
    stream = token_stream(sources, tokenizer)
    end = end_of_text(tokenizer)
    assert stream[0] == end == 0
    assert np.count_nonzero(stream == end) == len(sources)


def test_windows_begin_alike_and_follow_the_seed(streams: Streams) -> None:
    batch = random_windows(streams.training, 8, 32, streams.begin, (1, 2))
    assert batch.shape == (8, 33)
    assert (batch[:, 0] == streams.begin).all()
    assert batch.equal(random_windows(streams.training, 8, 32, streams.begin, (1, 2)))
    assert not batch.equal(random_windows(streams.training, 8, 32, streams.begin, (1, 3)))


def test_consecutive_windows_ask_for_every_token_once(streams: Streams) -> None:
    asked = consecutive_windows(streams.held_out, 16, streams.begin)[:, 1:].flatten().numpy()
    assert (asked == streams.held_out[1 : 1 + len(asked)]).all()
    assert len(streams.held_out) - 1 - len(asked) < 16


def test_rate_warms_up_holds_and_decays_to_zero() -> None:
    recipe = Recipe()
    rates = [recipe.rate(done) for done in np.linspace(0, 1, 101)]
    assert 0 < rates[0] < 0.1 * recipe.peak_rate
    assert rates[10] == rates[40] == recipe.peak_rate
    assert rates[-1] == 0 == recipe.rate(1.1)
    assert sorted(rates[50:], reverse=True) == rates[50:]


def test_a_row_sees_no_later_token() -> None:
    network = Network(TINY)
    tokens = torch.randint(0, VOCABULARY, (1, 24), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % VOCABULARY
    with torch.inference_mode():
        before, after = network(tokens)[0], network(changed)[0]
    assert torch.allclose(before[:12], after[:12], atol=1e-6)
    assert not torch.allclose(before[12:], after[12:], atol=1e-3)


@pytest.mark.slow
def test_a_tiny_network_learns(streams: Streams) -> None:
    training = tiny_training()
    before = validation_loss(training.network, streams)
    for _ in range(20):
        training.step(streams)
    assert validation_loss(training.network, streams) < before - 0.5


def test_a_run_ends_on_time_and_writes_a_gguf(streams: Streams, tokenizer: Tokenizer, tmp_path: Path) -> None:
    training = tiny_training(replace(RECIPE, minutes=1e-6))
    run(training, streams, tokenizer, tmp_path, tmp_path / "tiny.gguf")
    assert training.progress.steps == 1
    assert {path.name for path in tmp_path.iterdir()} == {CHECKPOINT, "tiny.gguf"}
    with GGUFFile(tmp_path / "tiny.gguf") as file:
        assert file.integer("llama.block_count") == TINY.layers
        assert set(file.tensors) == set(training.network.state_dict())
        assert file.text("general.size_label")


def test_gguf_reads_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    network = Network(replace(TINY, rope_base=5000.0))
    write_gguf(network, tokenizer, tmp_path / "tiny.gguf")
    again = read_network(tmp_path / "tiny.gguf")
    assert again.shape == replace(network.shape, norm_epsilon=again.shape.norm_epsilon)
    assert again.shape.norm_epsilon == pytest.approx(network.shape.norm_epsilon)
    kind = GGMLQuantizationType.Q8_0
    for name, weight in network.state_dict().items():
        wanted = weight.numpy()
        wanted = dequantize(quantize(wanted, kind), kind) if wanted.ndim == 2 else wanted
        assert np.array_equal(again.state_dict()[name].numpy(), wanted), name
    text = "def f(x):\n    return [x, 'é']\n"
    assert read_tokenizer(tmp_path / "tiny.gguf").encode(text).ids == tokenizer.encode(text).ids


def test_a_resumed_run_goes_on_where_it_stopped(streams: Streams, tmp_path: Path) -> None:
    training = tiny_training()
    for _ in range(3):
        training.step(streams)
    training.save(tmp_path / CHECKPOINT)
    resumed = Training.resume(tmp_path / CHECKPOINT, RECIPE.minutes, training.device, compiled=False)
    assert resumed.progress == training.progress
    assert resumed.recipe == RECIPE
    assert resumed.step(streams) == pytest.approx(training.step(streams), rel=1e-3)
    for ours, theirs in zip(resumed.network.parameters(), training.network.parameters(), strict=True):
        # The rate follows the clock, so the two steps differ by a hair.
        assert torch.allclose(ours, theirs, atol=1e-3)
