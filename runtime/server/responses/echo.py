"""A response before anything of it has come: what was asked for, told back."""

import time
import uuid

from anespec.runtime.options import GenerationOptions
from anespec.runtime.server.responses.answers import (
    FormatAnswer,
    ReasoningAnswer,
    ResponseAnswer,
    TextAnswer,
    ToolAnswer,
)
from anespec.runtime.server.responses.body import ResponsesBody, TextFormat
from anespec.runtime.server.responses.tools import ChosenTools


def begun(body: ResponsesBody, model: str, unsaid: bool, options: GenerationOptions) -> ResponseAnswer:
    """The response of a request to what is served as `model`, with `options`; `unsaid` as for `tool_use`."""
    choice = body.tool_choice or "auto"
    return ResponseAnswer(
        id=f"resp_{uuid.uuid4().hex}",
        object="response",
        created_at=int(time.time()),
        completed_at=None,
        status="in_progress",
        background=False,
        error=None,
        incomplete_details=None,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=None,
        reasoning=ReasoningAnswer(effort=body.reasoning.effort if body.reasoning else None, summary=None),
        store=False,
        temperature=options.temperature,
        text=TextAnswer(format=_format(body.format)),
        tool_choice=choice.model_dump(exclude_unset=True) if isinstance(choice, ChosenTools) else choice,
        tools=[
            ToolAnswer(
                type="function",
                name=tool.name or "",
                description=tool.description,
                parameters=tool.parameters,
                strict=unsaid if tool.strict is None else tool.strict,
            )
            for tool in body.tools or ()
        ],
        top_p=options.top_p,
        truncation="disabled",
        usage=None,
    )


def _format(asked: TextFormat) -> FormatAnswer:
    if asked.type != "json_schema":
        return FormatAnswer(type=asked.type)
    return FormatAnswer(
        type=asked.type,
        name=asked.name,
        description=asked.description,
        schema=asked.schema_ or {},
        strict=bool(asked.strict),
    )
