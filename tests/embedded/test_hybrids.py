"""Hybrids compute what their GGUF says, as the reference and llama.cpp read it, and learn from a llama."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from anespec.embedded.corpus import standard_library, train_tokenizer
from anespec.embedded.gguf_export import read_network, write_gguf
from anespec.embedded.layers import AttentionLayer
from anespec.embedded.network import Network
from anespec.embedded.recurrent_layers import CHUNK, read_states
from anespec.embedded.shape import STYLES, Shape
from anespec.gguf.container import GGUFFile
from anespec.validate.golden.reference import Reference

VOCABULARY = 384
TINY = Shape(
    vocabulary=VOCABULARY, width=64, layers=3, heads=2, kv_heads=1, feed_forward=96, context=128, state=32
)
HYBRIDS = [name for name, style in STYLES.items() if style.hybrid]
ROWS = 2 * CHUNK + 7


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    sources = [source for source in standard_library() if source.name.startswith("json/")]
    return train_tokenizer(sources, VOCABULARY)


def lively(architecture: str) -> Network:
    """A random network whose layers change the hidden state by far more than rounding."""
    torch.manual_seed(1)
    network = Network(replace(TINY, architecture=architecture))
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() == 2 and not name.startswith("token_embd"):
                weight.mul_(4)
            elif name.endswith("norm.weight"):
                weight.add_(0.3 * torch.randn_like(weight))
    return network


def some_tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (1, ROWS), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_a_row_sees_no_later_token(architecture: str) -> None:
    network, tokens = lively(architecture), some_tokens()
    changed = tokens.clone()
    changed[0, CHUNK + 3 :] = (changed[0, CHUNK + 3 :] + 1) % VOCABULARY
    with torch.inference_mode():
        before, after = network(tokens)[0], network(changed)[0]
    assert torch.allclose(before[: CHUNK + 3], after[: CHUNK + 3], atol=1e-5)
    assert not torch.allclose(before[CHUNK + 3 :], after[CHUNK + 3 :], atol=1e-3)


@pytest.mark.fast_only("qwen35", "granitehybrid")
@pytest.mark.parametrize("architecture", HYBRIDS)
def test_the_reference_computes_alike(architecture: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_gguf(lively(architecture), tokenizer, tmp_path / "tiny.gguf")
    network, tokens = read_network(tmp_path / "tiny.gguf"), some_tokens()
    assert network.shape.architecture == architecture
    assert [network.shape.attends(layer) for layer in range(3)] == [False, False, True]
    with torch.inference_mode():
        logits = network(tokens)[0].numpy()
    with GGUFFile(tmp_path / "tiny.gguf") as file:
        reference = Reference(file, TINY.context, resident_layers=TINY.layers)
        (hidden,) = reference.hidden_states([tokens[0].tolist()])[-1:]
        expected = reference.logits(hidden)
    assert np.abs(logits - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_llama_cpp_computes_alike(architecture: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip(
        "llama_cpp", reason="needs llama-cpp-python (pip install llama-cpp-python)"
    )
    write_gguf(lively(architecture), tokenizer, tmp_path / "tiny.gguf")
    theirs = llama_cpp.Llama(
        str(tmp_path / "tiny.gguf"), n_ctx=TINY.context, logits_all=True, n_threads=1, verbose=False
    )
    tokens = some_tokens()
    theirs.eval(tokens[0].tolist())
    expected = np.array(theirs.scores[:ROWS])
    with torch.inference_mode():
        logits = read_network(tmp_path / "tiny.gguf")(tokens)[0].numpy()
    # llama.cpp quantises activations to 8 bits for Q8_0 matrices, hence no tighter bound.
    assert np.sqrt(np.square(logits - expected).mean()) < 0.08 * expected.std()


@pytest.mark.parametrize("delta", [False, True])
def test_states_are_read_as_if_row_by_row(delta: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, ROWS, width, generator=generator) for width in (4, 4, 5))
    k = nn.functional.normalize(k, dim=-1)
    decays, beta = -torch.rand(2, 3, ROWS, generator=generator), torch.rand(2, 3, ROWS, generator=generator)
    state, expected = torch.zeros(2, 3, 4, 5), []
    for row in range(ROWS):
        state = decays[..., row, None, None].exp() * state
        key, written = k[..., row, :, None], v[..., row, None, :]
        if delta:
            written = beta[..., row, None, None] * (written - key.mT @ state)
        state = state + key @ written
        expected.append(q[..., row, None, :] @ state)
    found = read_states(q, k, v, decays, beta if delta else None)
    assert torch.allclose(found, torch.cat(expected, 2), atol=1e-4)


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_a_hybrid_starts_from_a_llama(architecture: str) -> None:
    teacher, network = lively("llama"), Network(replace(TINY, architecture=architecture))
    network.start_from(teacher)
    own, theirs = network.blk[2], teacher.blk[2]
    assert isinstance(own, AttentionLayer) and isinstance(theirs, AttentionLayer)
    style = network.shape.style
    if style.head_norms:
        # The norms of queries and keys are all that is new in the scores.
        own.attn_q_norm, own.attn_k_norm = nn.Identity(), nn.Identity()  # type: ignore[assignment]
    if style.output_gate:
        with torch.no_grad():
            own.attn_q.weight.view(TINY.heads, 2, TINY.head_dim, -1)[:, 1] = 0
    x = torch.randn(1, 20, TINY.width, generator=torch.Generator().manual_seed(0))
    rope = network.cos[:20], network.sin[:20]
    with torch.inference_mode():
        found, expected = own.mixed(x, *rope), theirs.mixed(x, *rope)
    assert torch.allclose(found, expected / (2 if style.output_gate else 1), atol=1e-4)
    for ours, name in ((own.ffn_down, "ffn_down"), (network.blk[0].get_submodule("ffn_up"), "ffn_up")):
        layer = 2 if name == "ffn_down" else 0
        assert ours.get_parameter("weight").equal(teacher.blk[layer].get_parameter(f"{name}.weight"))
    norms = getattr(own, style.mlp_norm), getattr(network, style.final_norm)
    assert norms[0].weight.equal(teacher.blk[2].get_parameter("ffn_norm.weight"))
    assert norms[1].weight.equal(teacher.get_parameter("output_norm.weight"))


def test_a_hybrid_learns_what_its_teacher_predicts() -> None:
    teacher = lively("llama")
    network = Network(replace(TINY, architecture="lfm2"))
    windows = some_tokens()
    with torch.inference_mode():
        entropy = torch.distributions.Categorical(logits=teacher(windows[:, :-1])).entropy().mean()
        assert float(teacher.loss(windows, teacher)) == pytest.approx(float(entropy), rel=1e-4)
        assert float(network.loss(windows, teacher)) > float(entropy)
