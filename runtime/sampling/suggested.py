"""The sampling parameters that a model's makers suggest: keys of its GGUF, as llama.cpp reads them.

Converters write them out of a model's generation_config.json. `penalty_repeat` is ignored: there it looks at
the last tokens, here at all of them.
"""

from collections.abc import Mapping
from types import MappingProxyType

from anespec.manifests.errors import RequestError
from anespec.runtime.sampling.parameters import SamplingParameters

PREFIX = "general.sampling."
KEYS: Mapping[str, str] = MappingProxyType(
    {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
)

_DIGITS = 6
"""That a float32 holds: what was written as 0.95 is 0.95 again."""


def suggested_sampling(metadata: Mapping[str, object]) -> SamplingParameters:
    """Return the sampling parameters in a GGUF's metadata, as fields that are set; invalid values are
    ignored."""
    found = SamplingParameters()
    for name, key in KEYS.items():
        value = metadata.get(PREFIX + key)
        if name == "top_k" and isinstance(value, int) and value < 0:
            value = 0  # llama.cpp's all
        if value is None:
            continue
        if isinstance(value, float):
            value = float(f"{value:.{_DIGITS}g}")
        try:
            found = found.with_changes(**{name: value})
        except RequestError:
            continue
    return found
