"""Architectures that will never be supported, with the reason. Others are not supported yet."""

from collections.abc import Mapping
from types import MappingProxyType

MIXTURE = "is a mixture of experts of a form that is not supported"
RECURRENT = (
    "keeps a recurrent state that cannot be folded in chunks; such a state cannot undo a rejected draft"
)
NO_DECODER = "is not a text decoder that reads from left to right, so speculation is impossible"

_MIXTURES = (
    "afmoe arctic bailingmoe bailingmoe2 dbrx deepseek deepseek2-ocr dots1 exaone-moe glm-dsa "
    "glm4moe grok grovemoe hunyuan-moe llada-moe llama4 mimo2 minimax-m2 mistral4 phimoe "
    "qwen3vlmoe rnd1 smallthinker step35"
)
_RECURRENT = "arwkv7 jamba kimi-linear mamba plamo2 rwkv6 rwkv6qwen2 rwkv7"
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
