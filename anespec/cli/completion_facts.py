"""Convert a completion to the JSON that `generate --json` prints."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anespec.model import Model
    from anespec.results import Choice, Completion
    from anespec.runtime.engine.requests import OutputToken


def completion_facts(completion: "Completion", model: "Model") -> dict[str, Any]:
    """Return the facts of the first choice; if there are several, `choices` has the facts of all."""
    choices = [_choice_facts(choice, model) for choice in completion.choices]
    facts = {"prompt_ids": list(completion.prompt_ids)} | choices[0]
    return facts | {"choices": choices} if len(choices) > 1 else facts


def _choice_facts(choice: "Choice", model: "Model") -> dict[str, Any]:
    statistics = choice.statistics
    facts = {
        "output_ids": list(choice.output_ids),
        "text": choice.text,
        "passes": statistics.passes,
        "tokens_per_pass": round(statistics.tokens_per_pass, 4),
        "remembered_tokens": statistics.remembered_tokens,
        "reused_tokens": statistics.reused_tokens,
        "forced_tokens": statistics.forced_tokens,
        "accepted_by_position": list(statistics.accepted_by_position),
        "proposed_by_position": list(statistics.proposed_by_position),
        "drafts": {
            count.source: {"proposed": count.proposed, "accepted": count.accepted}
            for count in statistics.by_source
        },
        "finish_reason": choice.finish.value,
        "seconds": {
            "load": round(model.load_seconds, 4),
            "gates": round(model.gate_seconds, 4),
            "prefill": round(statistics.prefill_seconds, 4),
            "decode": round(statistics.decode_seconds, 4),
        },
    }
    if any(token.logprob is not None for token in choice.tokens):
        facts["logprobs"] = [_logprob_facts(token, model) for token in choice.tokens]
    return facts


def _logprob_facts(token: "OutputToken", model: "Model") -> dict[str, Any]:
    def named(id: int, logprob: float | None) -> dict[str, Any]:
        return {"id": id, "token": model.detokenize([id], skip_special=False), "logprob": logprob}

    return named(token.id, token.logprob) | {"top": [named(top.token, top.logprob) for top in token.top]}
