"""The embedded GGUF: complete, small, and the same model to llama.cpp as to torch."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from anespec.embedded import model_path
from anespec.embedded.corpus import END_OF_TEXT, end_of_text
from anespec.embedded.gguf_export import read_network, read_tokenizer
from anespec.embedded.shape import Shape
from anespec.gguf.container import GGUFFile

PYTHON_TEXT = '''class Queue:
    """A queue: first in, first out."""

    def __init__(self, maxsize=0):
        self.maxsize = maxsize
        self.items = []

    def put(self, item):
        if self.maxsize > 0 and len(self.items) >= self.maxsize:
            raise ValueError("full: %d items" % len(self.items))
        self.items.append(item)

    def get(self):
        return self.items.pop(0)
'''
AWKWARD_TEXT = "x = {'é': 1.5e-10,\t\"naïve\": 0x1F}   # 日本語 …  \r\n\n\n        don't\u00a0stop;\x0cend   "


@pytest.fixture(scope="module")
def model() -> Iterator[GGUFFile]:
    with GGUFFile(model_path()) as file:
        yield file


def test_size_and_parameter_count(model: GGUFFile) -> None:
    assert model.nbytes <= 7 * 10**6
    assert 3e6 <= sum(math.prod(tensor.shape) for tensor in model) <= 6e6


def test_hyperparameters(model: GGUFFile) -> None:
    shape = Shape()
    assert model.text("general.architecture") == "llama"
    assert model.integer("llama.context_length") >= 1024
    assert model.integer("llama.embedding_length") == shape.width
    assert model.integer("llama.block_count") == shape.layers
    assert model.integer("llama.rope.dimension_count") == shape.head_dim
    assert model.integer("llama.attention.head_count") > model.integer("llama.attention.head_count_kv")
    assert model.number("llama.rope.freq_base") == 10000.0


def test_description_and_licence(model: GGUFFile) -> None:
    assert model.text("general.name")
    assert "standard library" in model.text("general.description")
    assert model.text("general.license") == "PSF-2.0"


def test_vocabulary(model: GGUFFile) -> None:
    tokens = model.strings("tokenizer.ggml.tokens")
    end = tokens.index(END_OF_TEXT)
    kinds = model.numbers("tokenizer.ggml.token_type")
    assert model.text("tokenizer.ggml.model") == "gpt2"
    assert model.text("tokenizer.ggml.pre") == "gpt-2"
    assert len(tokens) == len(set(tokens)) == len(kinds) == model.integer("llama.vocab_size")
    assert model.integer("tokenizer.ggml.bos_token_id") == model.integer("tokenizer.ggml.eos_token_id") == end
    assert model.flag("tokenizer.ggml.add_bos_token", False)
    assert [i for i, kind in enumerate(kinds) if kind == 3] == [end]


def test_matrices_are_q8_0_and_norms_f32(model: GGUFFile) -> None:
    for tensor in model:
        wanted = (
            GGMLQuantizationType.F32 if tensor.name.endswith("norm.weight") else GGMLQuantizationType.Q8_0
        )
        assert tensor.kind is wanted, tensor.name


@pytest.mark.parametrize("text", [PYTHON_TEXT, AWKWARD_TEXT])
def test_tokenizer_loses_nothing(text: str) -> None:
    tokenizer = read_tokenizer(model_path())
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_llama_cpp_tokenises_alike() -> None:
    llama_cpp = pytest.importorskip(
        "llama_cpp", reason="needs llama-cpp-python (pip install llama-cpp-python)"
    )
    theirs = llama_cpp.Llama(str(model_path()), vocab_only=True, verbose=False)
    ours = read_tokenizer(model_path())
    for text in (PYTHON_TEXT, AWKWARD_TEXT):
        ids = theirs.tokenize(text.encode(), add_bos=True)
        assert ids == [end_of_text(ours), *ours.encode(text).ids]


def test_llama_cpp_computes_alike() -> None:
    llama_cpp = pytest.importorskip(
        "llama_cpp", reason="needs llama-cpp-python (pip install llama-cpp-python)"
    )
    theirs = llama_cpp.Llama(str(model_path()), n_ctx=1024, logits_all=True, n_threads=2, verbose=False)
    ids = theirs.tokenize(PYTHON_TEXT.encode(), add_bos=True)
    theirs.eval(ids)
    expected = np.array(theirs.scores[: len(ids)])
    with torch.inference_mode():
        logits = read_network(model_path())(torch.tensor([ids]))[0].numpy()
    # llama.cpp quantises activations to 8 bits for Q8_0 matrices, hence no tighter bound.
    assert np.abs(logits - expected).max() < 0.05 * expected.std() * 4
    assert (logits.argmax(-1) == expected.argmax(-1)).mean() > 0.95


def test_the_model_knows_python() -> None:
    """Far below the loss of a guess by token frequency alone, which is about 6 nats."""
    tokenizer = read_tokenizer(model_path())
    ids = [end_of_text(tokenizer), *tokenizer.encode(PYTHON_TEXT).ids]
    with torch.inference_mode():
        assert float(read_network(model_path()).loss(torch.tensor([ids]))) < 3.0
