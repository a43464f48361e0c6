"""Architectures that do not convert, with the reason: all that llama.cpp has and anespec lacks."""

from collections.abc import Mapping
from types import MappingProxyType

MIXTURE = "is a mixture of experts of a form that is not supported"
RECURRENT = (
    "keeps a recurrent state that cannot be folded in chunks; such a state cannot undo a rejected draft"
)
NO_DECODER = "is not a text decoder that reads from left to right, so speculation is impossible"
DISTANCES = "adds a bias to its scores that grows with the distance (ALiBi), which the graph does not compute"
NEW_ATTENTION = (
    "has layers that the graph does not compute: a decay for each key channel (KDA), an indexer that selects "
    "what attention reads, or hyper-connections"
)
IMAGES = "has weights or logits of their own for image tokens among its text, which are not supported"
LATENT = "has latent attention without experts, a form that is not supported"
UNTRIED = "is not supported yet: nobody has compared it with a reference"

_GROUPS = {
    MIXTURE: (
        "afmoe arctic bailingmoe bailingmoe2 dbrx deepseek deepseek2-ocr dots1 exaone-moe glm-dsa "
        "glm4moe grok grovemoe hunyuan-moe llada-moe llama4 mimo2 minimax-m2 mistral4 phimoe "
        "qwen3vlmoe rnd1 smallthinker step35"
    ),
    RECURRENT: "arwkv7 jamba kimi-linear mamba plamo2 rwkv6 rwkv6qwen2 rwkv7",
    NO_DECODER: (
        "bert clip dream eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llada llama-embed modern-bert "
        "neo-bert nomic-bert nomic-bert-moe t5 t5encoder wavtokenizer-dec"
    ),
    DISTANCES: "baichuan bloom jais mpt refact",
    NEW_ATTENTION: "bailingmoe3 dots3note glm5-next hy_v4 kimi-k3 qwen4exp",
    IMAGES: "chameleon cogvlm",
    LATENT: "minicpm3 plm",
    "mixes four streams of hidden states in every layer (AltUp), which the graph does not compute": "gemma3n",
    "norms values inside attention and MLP, before their last products, which is not supported": "bitnet",
    "has a linear map or nothing in place of some layers' attention or MLP, which is not supported": "deci",
    "runs its layers twice, which the graph does not do": "nanbeige",
    UNTRIED: (
        "codeshell gptj gptneox hunyuan_vl jais2 maincoder openelm orion paddleocr "
        "pangu-embedded plamo plamo3 qwen starcoder"
    ),
}

REFUSED: Mapping[str, str] = MappingProxyType(
    {architecture: reason for reason, names in _GROUPS.items() for architecture in names.split()}
)
"""The reasons by the names of architectures in GGUF: those of gguf-py (constants.py), and newer ones."""
