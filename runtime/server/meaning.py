"""Say which fields of requests mean something, and refuse those that an endpoint does not have.

A field that constrains an answer, or changes what it means, must not be ignored: the client would take
another answer for the one it asked for. The fields that an endpoint has are those of its body; this table has
the others, of OpenAI's API, llama-server, vLLM, Ollama and their like. All further fields are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, model_validator

from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.errors import ApiError

NOTHING: tuple[object, ...] = (None, False, 0, "", [], {})
"""The values with which most fields ask for nothing."""


@dataclass(frozen=True)
class Meaning:
    """What a client can send instead of a field, and the values with which the field changes nothing.

    `{limit}` stands for the endpoint's own limit of tokens.
    """

    instead: str = "leave it out"
    neutral: tuple[object, ...] = NOTHING


_FORMAT = Meaning("send response_format, or grammar")
_STATELESS = Meaning("responses are not stored here; send the whole conversation")
_TEXT_ONLY = Meaning("this model reads and writes only text; leave it out")
_TOOLS = Meaning("send tools and tool_choice")

MEANINGS: Mapping[str, Meaning] = MappingProxyType(
    {
        # The form of the answer.
        "response_format": Meaning("send text.format, format, or grammar"),
        "grammar": Meaning("send response_format, format, or text.format"),
        "json_schema": Meaning("send response_format, format, or text.format"),
        "format": _FORMAT,
        "text": Meaning("send response_format"),
        **dict.fromkeys(
            ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"), _FORMAT
        ),
        **dict.fromkeys(("regex", "ebnf", "json_object", "structural_tag"), _FORMAT),
        **dict.fromkeys(
            ("grammar_lazy", "grammar_triggers"), Meaning("leave it out; a grammar always holds")
        ),
        "tools": Meaning("send the conversation to a chat endpoint"),
        "tool_choice": Meaning("send the conversation to a chat endpoint", (*NOTHING, "auto", "none")),
        "parallel_tool_calls": Meaning("send the conversation to a chat endpoint", (None, True, False)),
        "parse_tool_calls": Meaning("leave it out; calls are always read", (None, True)),
        "functions": _TOOLS,
        "function_call": _TOOLS,
        "modalities": Meaning(_TEXT_ONLY.instead, (*NOTHING, ["text"])),
        **dict.fromkeys(("audio", "images", "image", "image_data", "multimodal_data", "audios"), _TEXT_ONLY),
        **dict.fromkeys(("width", "height", "steps"), _TEXT_ONLY),
        "suffix": Meaning("put it into the prompt in the model's format, or send the texts to /infill"),
        "echo": Meaning("send the prompt to /v1/completions"),
        "best_of": Meaning("send n", (*NOTHING, 1)),
        "n": Meaning("send a request for each answer", (None, 0, 1)),
        # What the model reads.
        "messages": Meaning("send the conversation to a chat endpoint"),
        "system": Meaning("send a message with the role system"),
        "instructions": Meaning("send a message with the role system"),
        "template": Meaning("send a raw prompt"),
        "chat_template": Meaning("name it when the daemon starts, with --chat-template"),
        "context": Meaning("send the conversation to /api/chat"),
        "documents": Meaning("send them to /v1/chat/completions, or in a message"),
        "chat_template_kwargs": Meaning("send the conversation to /v1/chat/completions"),
        **dict.fromkeys(
            ("think", "reasoning_effort", "enable_thinking"), Meaning("send this API's own field", (None,))
        ),
        "reasoning": Meaning("send reasoning_effort"),
        "thinking": Meaning("send reasoning_effort"),
        **dict.fromkeys(
            ("thinking_budget", "reasoning_budget", "thinking_budget_tokens", "thinking_token_budget"),
            Meaning("limit the answer with {limit}", (None, -1)),
        ),
        "reasoning_format": Meaning(
            "leave it out; reasoning comes apart from the answer", (None, "", "auto", "deepseek")
        ),
        "continue_final_message": Meaning("send the conversation to /v1/chat/completions"),
        "add_generation_prompt": Meaning("send the conversation to /v1/chat/completions", (None, True)),
        "truncation": Meaning("send the conversation to /v1/chat/completions", (None, "", "disabled")),
        "truncate_prompt_tokens": Meaning("shorten the prompt"),
        **dict.fromkeys(("previous_response_id", "conversation", "background", "compaction"), _STATELESS),
        "thread": _STATELESS,
        **dict.fromkeys(
            ("container", "mcp_servers"), Meaning("this daemon runs no tools itself; leave it out")
        ),
        "web_search_options": Meaning("nothing is searched here; leave it out"),
        "lora": Meaning("convert the model with its adapter"),
        # Where the answer ends.
        **dict.fromkeys(
            ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict"),
            Meaning("send {limit}", (None, -1)),
        ),
        "num_predict": Meaning("send {limit}", (None, -1)),
        "stop": Meaning("send it in options"),
        "stop_sequences": Meaning("send stop"),
        "ignore_eos": Meaning(),
        "t_max_predict_ms": Meaning("limit the answer by tokens", (None, 0, -1)),
        "samplers": Meaning("turn single samplers off by their values"),
        # How tokens are chosen.
        **dict.fromkeys(
            (
                *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "presence_penalty"),
                *("frequency_penalty", "repeat_penalty", "repetition_penalty", "repeat_last_n", "logit_bias"),
            ),
            Meaning("send it where this API has it", (None,)),
        ),
        **dict.fromkeys(
            (
                *("mirostat", "dry_multiplier", "xtc_probability", "dynatemp_range", "top_a", "min_tokens"),
                *("smoothing_factor", "use_beam_search", "logits_processors", "allowed_token_ids"),
                *("bad_words", "bad_words_ids", "stop_token_ids", "no_repeat_ngram_size", "n_indent"),
                *(
                    "min_keep",
                    "include_stop_str_in_output",
                    "return_tokens_as_token_ids",
                    "post_sampling_probs",
                ),
            ),
            Meaning(),
        ),
        "prompt_logprobs": Meaning("send echo and logprobs to /v1/completions", (None, False)),
        "n_probs": Meaning("send logprobs to /v1/completions or /v1/chat/completions"),
        "top_n_sigma": Meaning(neutral=(None, -1, 0)),
        "adaptive_target": Meaning(neutral=(None, -1)),
        "tfs_z": Meaning(neutral=(None, 1, 0)),
        "length_penalty": Meaning(neutral=(None, 1, 0)),
        "skip_special_tokens": Meaning("leave it out; special tokens are never part of a text", (None, True)),
        "penalize_newline": Meaning(neutral=(None, True)),
        "logprobs": Meaning("send it to /v1/completions or /v1/chat/completions"),
        "top_logprobs": Meaning("send it to /v1/chat/completions"),
    }
)


class MeantBody(Body):
    """A body all of whose fields with a meaning are served, or refused by their names."""

    model_config = ConfigDict(extra="allow")

    place: ClassVar[str] = ""
    """The path of this object in the request, with a dot at its end."""

    limit: ClassVar[str] = "max_tokens"
    """The field that limits the tokens of the answer."""

    @model_validator(mode="after")
    def require_served(self) -> Self:
        """Raise ApiError for a field of MEANINGS that this body does not have; forget all unknown fields."""
        unknown: dict[str, Any] = self.__pydantic_extra__ or {}
        for name in sorted(unknown.keys() & MEANINGS.keys()):
            meaning = MEANINGS[name]
            if unknown[name] not in meaning.neutral:
                raise ApiError(
                    400,
                    f"{self.place}{name} is not supported here; {meaning.instead.format(limit=self.limit)}",
                    "unsupported_value",
                    self.place + name,
                )
        unknown.clear()
        return self
