"""Write the demo model as a GGUF of llama.cpp's architecture `llama`, and read it back.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType, TokenType
from tokenizers import Tokenizer, models

from anespec.embedded.corpus import byte_level_bpe, end_of_text
from anespec.embedded.network import Network, Shape
from anespec.gguf.container import GGUFFile

NAME = "anespec demo"
LICENSE = "PSF-2.0"
DESCRIPTION = "A tiny language model of Python code, trained on Python's own standard library."


def write_gguf(network: Network, tokenizer: Tokenizer, path: Path) -> None:
    """Write the model to `path`: matrices as Q8_0, norms as F32.

    The file is written under a temporary name and renamed, so a reader never sees a partial file.
    """
    unfinished = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    _add_description(writer, network)
    _add_hyperparameters(writer, network.shape)
    _add_vocabulary(writer, tokenizer)
    for name, weight in network.state_dict().items():
        values = weight.float().cpu().numpy()
        kind = GGMLQuantizationType.Q8_0 if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)


def _add_description(writer: gguf.GGUFWriter, network: Network) -> None:
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(NAME)
    writer.add_description(DESCRIPTION)
    writer.add_license(LICENSE)
    writer.add_license_name("Python Software Foundation License Version 2")
    writer.add_license_link("https://docs.python.org/3/license.html")
    writer.add_languages(["en"])
    writer.add_tags(["text-generation", "python"])
    writer.add_size_label(f"{network.parameter_count() / 1e6:.1f}M")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_hyperparameters(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_vocab_size(shape.vocabulary)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    end = end_of_text(tokenizer)
    ids = range(tokenizer.get_vocab_size())
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokenizer.id_to_token(i) for i in ids])
    writer.add_token_types([TokenType.CONTROL if i == end else TokenType.NORMAL for i in ids])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(True)


def read_network(path: Path) -> Network:
    """Read the network from a file that `write_gguf` wrote; weights are dequantised to float32.

    Raises:
        AnespecError: the file cannot be read or lacks a tensor.
    """
    with GGUFFile(path) as file:
        shape = Shape(
            vocabulary=file.integer("llama.vocab_size"),
            width=file.integer("llama.embedding_length"),
            layers=file.integer("llama.block_count"),
            heads=file.integer("llama.attention.head_count"),
            kv_heads=file.integer("llama.attention.head_count_kv"),
            feed_forward=file.integer("llama.feed_forward_length"),
            context=file.integer("llama.context_length"),
            rope_base=file.number("llama.rope.freq_base"),
            norm_epsilon=file.number("llama.attention.layer_norm_rms_epsilon"),
        )
        network = Network(shape)
        network.load_state_dict({name: torch.tensor(file.rows(name)) for name in network.state_dict()})
    return network


def read_tokenizer(path: Path) -> Tokenizer:
    """Read the tokenizer from a file that `write_gguf` wrote.

    Raises:
        AnespecError: the file cannot be read or lacks its vocabulary.
    """
    with GGUFFile(path) as file:
        tokens = file.strings("tokenizer.ggml.tokens")
        merges = [merge.split(" ") for merge in file.strings("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    return byte_level_bpe(models.BPE(vocabulary, [(left, right) for left, right in merges]))
