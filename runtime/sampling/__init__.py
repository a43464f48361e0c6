"""Sample a token from a row of logits, and report its logprob and those of the likeliest tokens.

The steps are in the order of llama.cpp's default sampler chain: bias, penalties, grammar, top_k, typical_p,
top_p, min_p, temperature, sample (https://github.com/ggml-org/llama.cpp, common/sampling.cpp). So the filters
use the distribution at temperature 1, and each filter uses the tokens that the one before it left.

Names are imported on first use: the parameters alone need neither numpy nor a grammar engine.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anespec.runtime.sampling.grammars import GrammarTokens
    from anespec.runtime.sampling.parameters import Grammar, GrammarKind, SamplingParameters, choice_seed
    from anespec.runtime.sampling.sampler import Sampled, Sampler, TokenLogprob

__all__ = [
    "Grammar",
    "GrammarKind",
    "GrammarTokens",
    "Sampled",
    "Sampler",
    "SamplingParameters",
    "TokenLogprob",
    "choice_seed",
]

_IN_SAMPLER = ("Sampled", "Sampler", "TokenLogprob")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "GrammarTokens":
        from anespec.runtime.sampling.grammars import GrammarTokens

        return GrammarTokens
    if name in _IN_SAMPLER:
        from anespec.runtime.sampling import sampler

        return getattr(sampler, name)
    from anespec.runtime.sampling import parameters

    return getattr(parameters, name)
