"""The model families that can be converted. Each is a small file of data without graph code."""

from anespec.convert.families.cohere import COHERE2, COMMAND_R
from anespec.convert.families.deepseek import DEEPSEEK2
from anespec.convert.families.exaone import EXAONE, EXAONE4
from anespec.convert.families.family import Family
from anespec.convert.families.gemma import GEMMA, GEMMA2, GEMMA3, GEMMA4
from anespec.convert.families.glm import CHATGLM, GLM4
from anespec.convert.families.gpt_oss import GPT_OSS
from anespec.convert.families.granite import GRANITE, GRANITE_SWA, GRANITEMOE, MINICPM
from anespec.convert.families.layer_norm import FALCON, GPT2, NEMOTRON, OLMO, PHI2, STABLELM, STARCODER2
from anespec.convert.families.llama import (
    APERTUS,
    ARCEE,
    ERNIE4_5,
    ERNIE4_5_MOE,
    HUNYUAN_DENSE,
    INTERNLM2,
    LFM2,
    LFM2MOE,
    LLAMA,
    MISTRAL3,
    MUSE_GLIMMER,
    PHI3,
    SEED_OSS,
    SMOLLM3,
    SPARK,
    XVERSE,
)
from anespec.convert.families.mamba import FALCON_H1, GRANITE_HYBRID, MAMBA2, NEMOTRON_H, NEMOTRON_H_MOE
from anespec.convert.families.olmo2 import OLMO2, OLMOE
from anespec.convert.families.qwen import (
    QWEN2,
    QWEN2MOE,
    QWEN2VL,
    QWEN3,
    QWEN3MOE,
    QWEN3NEXT,
    QWEN3VL,
    QWEN35,
    QWEN35MOE,
)
from anespec.convert.families.refused import REFUSED
from anespec.system.errors import UnsupportedModelError
from anespec.system.formatting import quoted

FAMILIES = {
    family.architecture: family
    for family in (
        APERTUS,
        ARCEE,
        CHATGLM,
        COHERE2,
        COMMAND_R,
        DEEPSEEK2,
        ERNIE4_5,
        ERNIE4_5_MOE,
        EXAONE,
        EXAONE4,
        FALCON,
        FALCON_H1,
        GEMMA,
        GEMMA2,
        GEMMA3,
        GEMMA4,
        GLM4,
        GPT2,
        GPT_OSS,
        GRANITE,
        GRANITE_HYBRID,
        GRANITE_SWA,
        GRANITEMOE,
        HUNYUAN_DENSE,
        INTERNLM2,
        LFM2,
        LFM2MOE,
        LLAMA,
        MAMBA2,
        MINICPM,
        MISTRAL3,
        MUSE_GLIMMER,
        NEMOTRON,
        NEMOTRON_H,
        NEMOTRON_H_MOE,
        OLMO,
        OLMO2,
        OLMOE,
        PHI2,
        PHI3,
        QWEN2,
        QWEN2MOE,
        QWEN2VL,
        QWEN3,
        QWEN3MOE,
        QWEN3NEXT,
        QWEN3VL,
        QWEN35,
        QWEN35MOE,
        SEED_OSS,
        SMOLLM3,
        SPARK,
        STABLELM,
        STARCODER2,
        XVERSE,
    )
}

__all__ = ["FAMILIES", "family_of"]


def family_of(architecture: str) -> Family:
    """Return the family whose name in GGUF is `architecture`.

    Raises:
        UnsupportedModelError: the architecture is not supported; the message has the reason, or says that
            llama.cpp has no such architecture either.
    """
    try:
        return FAMILIES[architecture]
    except KeyError:
        if architecture in REFUSED:
            raise UnsupportedModelError(
                f"the architecture {architecture!r} {REFUSED[architecture]}"
            ) from None
        raise UnsupportedModelError(
            f"the architecture {quoted(architecture)} is unknown; the supported ones are: "
            f"{', '.join(sorted(FAMILIES))}"
        ) from None
