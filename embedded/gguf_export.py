"""Write the demo model, or a hybrid, as a GGUF of an architecture of llama.cpp, and read it back.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType, TokenType
from tokenizers import Tokenizer, models

from anespec.embedded.corpus import byte_level_bpe, end_of_text
from anespec.embedded.network import Network, is_matrix
from anespec.embedded.shape import ATTENTION_PERIOD, Shape
from anespec.gguf.container import GGUFFile

NAME = "anespec demo"
LICENSE = "PSF-2.0"
DESCRIPTION = "A tiny language model of Python code, trained on Python's own standard library."


def write_gguf(network: Network, tokenizer: Tokenizer, path: Path) -> None:
    """Write the model to `path`: matrices as Q8_0, the rest as F32.

    The file is written under a temporary name and renamed, so a reader never sees a partial file.
    """
    unfinished = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(unfinished, network.shape.architecture)
    _add_description(writer, network)
    _add_hyperparameters(writer, network.shape)
    _add_vocabulary(writer, tokenizer)
    for name, weight in network.state_dict().items():
        values = weight.float().cpu().numpy()
        kind = GGMLQuantizationType.Q8_0 if is_matrix(weight) else GGMLQuantizationType.F32
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
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    kv_heads = [shape.kv_heads * shape.attends(layer) for layer in range(shape.layers)]
    match shape.architecture:
        case "lfm2":
            writer.add_head_count_kv(kv_heads)
            writer.add_shortconv_l_cache(shape.taps)
        case "granitehybrid":
            writer.add_head_count_kv(kv_heads)
            writer.add_rope_scaling_finetuned(True)
            writer.add_attention_scale(shape.head_dim**-0.5)
            for add in (writer.add_embedding_scale, writer.add_residual_scale, writer.add_logit_scale):
                add(1.0)
            _add_recurrence(writer, shape)
        case "qwen35":
            writer.add_head_count_kv(shape.kv_heads)
            writer.add_key_length(shape.head_dim)
            writer.add_value_length(shape.head_dim)
            # llama.cpp rotates a pair that is in no section by nothing. Sections alternate pair by pair.
            pairs = range(shape.head_dim // 2)
            writer.add_rope_dimension_sections([*(len(pairs[part::3]) for part in range(3)), 0])
            writer.add_full_attention_interval(ATTENTION_PERIOD)
            _add_recurrence(writer, shape)
        case _:
            writer.add_head_count_kv(shape.kv_heads)


def _add_recurrence(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_ssm_conv_kernel(shape.taps)
    writer.add_ssm_inner_size(shape.inner)
    writer.add_ssm_state_size(shape.state)
    writer.add_ssm_time_step_rank(shape.recurrent_heads)
    writer.add_ssm_group_count(shape.groups)


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
        shape = _read_shape(file)
        network = Network(shape)
        network.load_state_dict({name: torch.tensor(file.rows(name)) for name in network.state_dict()})
    return network


def _read_shape(file: GGUFFile) -> Shape:
    prefix = file.text("general.architecture")
    default = Shape(architecture=prefix)
    kv_heads, by_layer = f"{prefix}.attention.head_count_kv", prefix in ("lfm2", "granitehybrid")
    taps = "shortconv.l_cache" if prefix == "lfm2" else "ssm.conv_kernel"
    return Shape(
        vocabulary=file.integer(f"{prefix}.vocab_size"),
        width=file.integer(f"{prefix}.embedding_length"),
        layers=file.integer(f"{prefix}.block_count"),
        heads=file.integer(f"{prefix}.attention.head_count"),
        kv_heads=int(file.numbers(kv_heads).max()) if by_layer else file.integer(kv_heads),
        feed_forward=file.integer(f"{prefix}.feed_forward_length"),
        context=file.integer(f"{prefix}.context_length"),
        rope_base=file.number(f"{prefix}.rope.freq_base"),
        norm_epsilon=file.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
        architecture=prefix,
        taps=file.integer(f"{prefix}.{taps}", default.taps),
        state=file.integer(f"{prefix}.ssm.state_size", default.state),
    )


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
