"""The table of docs/serving.md: what each endpoint for texts does with each field of a request.

Run it to write the table anew: `python tests/support/field_table.py`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from page_table import with_table

from anespec.runtime.server.endpoints import ENDPOINTS
from anespec.runtime.server.meaning import MEANINGS, MeantBody

DOCS = Path(__file__).resolve().parents[2] / "docs" / "serving.md"

WITHOUT_EFFECT = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "moderation", "access_programs"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "background_options"),
    *("max_tool_calls", "stream_options", "include", "prediction", "reference", "speculate", "keep_alive"),
    *("cache_prompt", "id_slot", "slot_id", "n_keep", "n_discard", "cache_salt", "priority", "request_id"),
    *("timings_per_token", "return_progress", "return_tokens", "response_fields", "guided_decoding_backend"),
    *("mirostat_tau", "mirostat_eta", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("dry_sequence_breakers", "xtc_threshold", "dynatemp_exponent", "adaptive_decay"),
    *("cache_control", "diagnostics", "inference_geo", "speed", "user_profile_id", "workspace_id", "betas"),
    *("context_management", "billing_policy", "fallbacks", "fallback_credit_token"),
    *("t_max_prompt_ms", "spaces_between_special_tokens"),
)
"""Fields that change no answer. Some only support fields of MEANINGS, and do nothing without these."""


def text_endpoints() -> Mapping[str, type[MeantBody]]:
    """The bodies of the endpoints that write texts, by path."""
    return {
        endpoint.path: endpoint.body
        for endpoint in ENDPOINTS
        if endpoint.body is not None and issubclass(endpoint.body, MeantBody)
    }


def served_by(kind: type[MeantBody]) -> set[str]:
    """The names of the fields that a body has, those in Ollama's `options` included."""
    names: set[str] = set()
    for name, field in kind.model_fields.items():
        names.add(field.alias or name)
        choices = getattr(field.validation_alias, "choices", ())
        names |= {str(choice) for choice in choices}
    if "options" in names:
        from anespec.runtime.server.ollama.fields import OllamaOptions

        names |= served_by(OllamaOptions)
    return names


def table() -> str:
    """The table in Markdown, of the fields that some endpoint has, and lists of the others."""
    served = {path: served_by(kind) for path, kind in text_endpoints().items()}
    lines = [["field", *(f"`{path}`" for path in served)], ["---"] * (len(served) + 1)]
    names = sorted(set().union(*served.values()) - set(WITHOUT_EFFECT))
    for name in names:
        without = "400" if name in MEANINGS else ""
        lines.append([f"`{name}`", *("yes" if name in has else without for has in served.values())])
    written = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return (
        f"{written}\n\nRefused by all of them: {_listed(MEANINGS.keys() - {*names})}.\n\n"
        f"Without effect on any answer: {_listed(WITHOUT_EFFECT)}."
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def written() -> str:
    """The page with the table as it should be."""
    return with_table(DOCS, "fields", table())


if __name__ == "__main__":
    DOCS.write_text(written())
