"""The model families that can be converted. Each is a small file of data without graph code."""

from anespec.convert.families.chatglm import CHATGLM
from anespec.convert.families.exaone import EXAONE, EXAONE4
from anespec.convert.families.family import Family
from anespec.convert.families.gemma import GEMMA, GEMMA2, GEMMA3, GEMMA4
from anespec.convert.families.glm4 import GLM4
from anespec.convert.families.granite import GRANITE
from anespec.convert.families.hunyuan import HUNYUAN_DENSE
from anespec.convert.families.llama import ERNIE4_5, INTERNLM2, LLAMA, XVERSE
from anespec.convert.families.mistral3 import MISTRAL3
from anespec.convert.families.olmo2 import OLMO2
from anespec.convert.families.phi3 import PHI3
from anespec.convert.families.qwen import QWEN2, QWEN2VL, QWEN3, QWEN3VL
from anespec.convert.families.refused import MIXTURE, REFUSED
from anespec.convert.families.seed_oss import SEED_OSS
from anespec.convert.families.smollm3 import SMOLLM3
from anespec.system.errors import UnsupportedModelError
from anespec.system.formatting import quoted

FAMILIES = {
    family.architecture: family
    for family in (
        CHATGLM,
        ERNIE4_5,
        EXAONE,
        EXAONE4,
        GEMMA,
        GEMMA2,
        GEMMA3,
        GEMMA4,
        GLM4,
        GRANITE,
        HUNYUAN_DENSE,
        INTERNLM2,
        LLAMA,
        MISTRAL3,
        OLMO2,
        PHI3,
        QWEN2,
        QWEN2VL,
        QWEN3,
        QWEN3VL,
        SEED_OSS,
        SMOLLM3,
        XVERSE,
    )
}

__all__ = ["FAMILIES", "MIXTURE", "family_of"]


def family_of(architecture: str) -> Family:
    """Return the family whose name in GGUF is `architecture`.

    Raises:
        UnsupportedModelError: the architecture is not supported; the message has the reason if it never will
            be.
    """
    try:
        return FAMILIES[architecture]
    except KeyError:
        if architecture in REFUSED:
            raise UnsupportedModelError(
                f"the architecture {architecture!r} {REFUSED[architecture]}"
            ) from None
        raise UnsupportedModelError(
            f"the architecture {quoted(architecture)} is not supported yet; the supported ones are: "
            f"{', '.join(sorted(FAMILIES))}"
        ) from None
