"""Define the common fields of OpenAI's requests for text, and convert them to options."""

import json
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from anespec.runtime.options import MOST_CHOICES, MOST_STOPS, GenerationOptions
from anespec.runtime.sampling.parameters import Grammar, GrammarKind
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.meaning import MeantBody
from anespec.runtime.server.openai.schema_limits import require_enforceable, require_modest, schema_grammar


class JsonSchemaBody(Body):
    """A JSON schema and its name.

    The answer matches it; with `strict`, a schema is refused if a keyword of it cannot be enforced.
    """

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The format of the answer: any text, any JSON object, or JSON that matches a schema.

    As in llama-server, `json_object` may have a schema, too.
    """

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaBody | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")

    @property
    def grammar(self) -> Grammar | None:
        """Return the grammar of the answer. Raises ApiError if the schema is missing or too large."""
        if self.type == "text":
            return None
        schema = self.schema_
        if self.type == "json_schema":
            schema = self.json_schema.schema_ if self.json_schema is not None else schema
            if schema is None:
                raise ApiError(
                    400, "a json_schema needs its schema", "invalid_value", "response_format.json_schema"
                )
        require_modest(schema, "response_format")
        if self.json_schema is not None and self.json_schema.strict:
            require_enforceable(schema, "response_format.json_schema")
        # An empty schema would allow any JSON value, but json_object means an object.
        return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema or {"type": "object"}))


MOST_BIASES = 4096


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


LONGEST_STOP = 1024
"""The most characters of a stop string: text that may begin one is held back, and checked again with each
token."""

StopStrings = Annotated[
    Annotated[list[Annotated[str, Field(max_length=LONGEST_STOP)]], Field(max_length=MOST_STOPS)] | None,
    BeforeValidator(_listed),
]
"""One text, or several."""


def _no_limit(value: Any) -> Any:
    return None if value == -1 else value


MostTokens = Annotated[int | None, Field(ge=1), BeforeValidator(_no_limit, json_schema_input_type=int | None)]
"""The most tokens of an answer; llama.cpp's clients send -1 for no limit."""


MostOrNoTokens = Annotated[
    int | None, Field(ge=0), BeforeValidator(_no_limit, json_schema_input_type=int | None)
]
"""The same for the continuation of a prompt; with 0 the prompt is computed, and nothing follows."""


def rivals(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """Return how many alternatives' logprobs are requested; None if no logprobs are requested at all.

    Raises:
        ApiError: alternatives are requested without logprobs.
    """
    if logprobs:
        return top_logprobs or 0
    if top_logprobs:
        raise ApiError(400, "top_logprobs needs logprobs; set it to true", "invalid_value", "top_logprobs")
    return None


def repetition(penalty: float | None, last: int | None) -> dict[str, Any]:
    """Return the options for a penalty over the `last` tokens: as in llama.cpp, 0 is none, and -1 is all."""
    return {
        "repetition_penalty": 1.0 if last == 0 else penalty,
        "repetition_window": None if last is None else max(0, last),
    }


def effort_variables(effort: str | None) -> dict[str, object]:
    """Return the template's variables for the reasoning effort; `none` turns reasoning off."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == "none" else {})


class StreamOptions(Body):
    """The data that a stream has in addition to the text."""

    include_usage: bool = False


def _off_below_zero(value: Any) -> Any:
    return 0 if isinstance(value, int) and value < 0 else value


TopK = Annotated[
    int | None, Field(ge=0, le=2**31 - 1), BeforeValidator(_off_below_zero, json_schema_input_type=int | None)
]
"""The number of likeliest tokens to sample from; 0 and, as in llama-server and vLLM, -1 mean all."""

Choices = Annotated[int | None, Field(ge=1, le=MOST_CHOICES)]
"""The number of answers to one prompt."""


class SamplingFields(MeantBody):
    """Sampling options: OpenAI's fields, and further ones of llama-server.

    The model supplies fields that are missing or null (ServingModel.settled).
    """

    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: TopK = None
    min_p: float | None = Field(default=None, ge=0, le=1)
    typical_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**64 - 1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repeat_penalty: float | None = Field(
        default=None,
        ge=0.01,
        le=100,
        validation_alias=AliasChoices("repeat_penalty", "repetition_penalty"),
    )
    repeat_last_n: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    logit_bias: (
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None
    ) = Field(default=None, max_length=MOST_BIASES)
    stop: StopStrings = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    speculate: bool = True

    @property
    def includes_usage(self) -> bool:
        """Return whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def options(self, **changes: Any) -> GenerationOptions:
        """Return the fields as options.

        `changes` are options that the endpoint sets; None means that it does not set one.

        Raises:
            RequestError: a value is out of range.
        """
        chosen = {
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "typical_p": self.typical_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            **repetition(self.repeat_penalty, self.repeat_last_n),
            "logit_bias": self.logit_bias,
            "stop": tuple(self.stop) if self.stop else None,
            "seed": None if self.seed is None else self.seed % 2**64,
            "temperature": self.temperature,
        }
        given = {name: value for name, value in (chosen | changes).items() if value is not None}
        return GenerationOptions(ignore_eos=self.ignore_eos, speculate=self.speculate, **given)


class ConstrainedFields(SamplingFields):
    """Sampling options, and the form of the answer in OpenAI's way or in one of llama-server's."""

    response_format: ResponseFormat | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None

    @property
    def grammar_field(self) -> str | None:
        """Return the name of the field that the answer's grammar comes from; None if there is none.

        Raises:
            ApiError: there are several.
        """
        asked = {
            "response_format": self.response_format is not None and self.response_format.type != "text",
            "grammar": bool(self.grammar),
            "json_schema": self.json_schema is not None,
        }
        names = [name for name, is_asked in asked.items() if is_asked]
        if len(names) > 1:
            raise ApiError(
                400, f"{' and '.join(names)} cannot hold together; leave one out", "invalid_value", names[1]
            )
        return names[0] if names else None

    @property
    def wanted_grammar(self) -> Grammar | None:
        """Return the grammar of the answer. Raises ApiError if it is too large, or given twice."""
        match self.grammar_field:
            case "grammar":
                return Grammar(kind=GrammarKind.GBNF, text=str(self.grammar))
            case "json_schema":
                return schema_grammar(self.json_schema or {}, "json_schema")
        return None if self.response_format is None else self.response_format.grammar
