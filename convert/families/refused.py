"""Architectures that will never be supported, with the reason. Others are not supported yet."""

from collections.abc import Mapping
from types import MappingProxyType

MIXTURE = (
    "is a mixture of experts; only dense models can be converted, since a pass would stream the weights of "
    "every expert"
)
RECURRENT = (
    "keeps a recurrent state; such a state cannot undo a rejected draft, so only models with a KV state can "
    "be converted"
)
NO_DECODER = "is not a text decoder that reads from left to right, so speculation is impossible"

_MIXTURES = (
    "afmoe arctic bailingmoe bailingmoe2 dbrx deepseek deepseek2 deepseek2-ocr dots1 ernie4_5-moe exaone-moe "
    "glm-dsa glm4moe gpt-oss granitemoe grok grovemoe hunyuan-moe lfm2moe llada-moe llama4 mimo2 minimax-m2 "
    "mistral4 olmoe phimoe qwen2moe qwen3moe qwen3vlmoe rnd1 smallthinker step35"
)
_RECURRENT = (
    "arwkv7 falcon-h1 granitehybrid jamba kimi-linear lfm2 mamba mamba2 nemotron_h nemotron_h_moe plamo2 "
    "qwen3next qwen35 qwen35moe rwkv6 rwkv6qwen2 rwkv7"
)
_NO_DECODERS = (
    "bert clip dream eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llada llama-embed modern-bert "
    "neo-bert nomic-bert nomic-bert-moe t5 t5encoder wavtokenizer-dec"
)

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        architecture: reason
        for names, reason in (
            (_MIXTURES, MIXTURE),
            (_RECURRENT, RECURRENT),
            (_NO_DECODERS, NO_DECODER),
        )
        for architecture in names.split()
    }
)
"""The reasons by GGUF's names of architectures (gguf-py, constants.py)."""
