"""Encode a conversation as a prompt's tokens, with the model's chat template."""

from collections.abc import Mapping, Sequence

from anespec.runtime.text.conversation import TAIL, ChatPrompt
from anespec.runtime.text.reasoning import TAGS, opened_by, tags_in
from anespec.runtime.text.stand_ins import NO_STAND_INS, StandIns
from anespec.runtime.text.templates.accepted import in_accepted_form
from anespec.runtime.text.templates.needs import as_template_reads
from anespec.runtime.text.templates.rendering import render_chat
from anespec.runtime.text.tokenizer import Tokenizer, require_fitting
from anespec.system.errors import RequestError

Facts = Mapping[str, object]


def encode_chat(
    tokenizer: Tokenizer,
    conversation: Sequence[Facts],
    context: int,
    *,
    variables: Facts | None = None,
    allow_special: bool = False,
) -> ChatPrompt:
    """Return the prompt that asks for the next message of `conversation`, in the model's chat template.

    A last message of the assistant is continued. `variables` are further variables of the template, such as
    `tools`. Two have a meaning of their own, as in transformers: `continue_final_message` (False: the last
    message is complete, and another one begins), and `add_generation_prompt` (False: none begins). Only the
    template can write special tokens: a special token that is spelled out in a message, a tool or a variable
    is encoded as plain text, unless `allow_special`. Exempt are the tags around the reasoning with which an
    assistant's message begins.

    Raises:
        RequestError: the model has no template, the template refuses the messages, there is no message to
            continue, or they cannot fit into `context` tokens.
    """
    template = tokenizer.chat_template
    if template is None:
        raise RequestError(
            "this model has no chat template, so it cannot answer messages; name a template, as in "
            "--chat-template chatml, or give a plain prompt to continue, with `anespec generate -p TEXT` or "
            "a daemon's /v1/completions"
        )
    others = dict(variables or {})
    is_continued = _is_continued(conversation, others.pop("continue_final_message", None))
    begins = others.pop("add_generation_prompt", None) is not False

    def render(messages: Sequence[Facts]) -> tuple[str, str | None, StandIns]:
        """Return the prompt, the tag that its end follows if a message is continued, and its stand-ins."""
        read: Sequence[Facts] = as_template_reads(messages, template)
        given: Facts = others
        stand_ins = NO_STAND_INS
        if not allow_special:
            read, given, stand_ins = _protected(tokenizer, read, others, template)
        text = render_chat(
            template,
            read[:-1] if is_continued else read,
            add_generation_prompt=begins or is_continued,
            bos=_text_of(tokenizer, tokenizer.bos_id),
            eos=_text_of(tokenizer, tokenizer.eos_id),
            variables=given,
            escaped_as=stand_ins.escaped_as,
        )
        if not is_continued:
            return text, None, stand_ins
        continued, tag = _continued(text, read[-1], template)
        return continued, tag, stand_ins

    rendered, tag, stand_ins = in_accepted_form(template, conversation, render)
    require_fitting(rendered, tokenizer, context)
    text = stand_ins.unescape(rendered)
    ids = tuple(tokenizer.encode(text, add_special=False, parse_special=True, stand_ins=stand_ins))
    tail = tokenizer.decode(ids[-TAIL:], skip_special=False) if tag is None else tag
    return ChatPrompt(ids, tail, tokenizer.chat_ends, tokenizer.chat_is_spaced and tag is None)


def _is_continued(conversation: Sequence[Facts], asked: object) -> bool:
    """Return whether the last message is continued; raise RequestError if it cannot be."""
    last = conversation[-1]
    is_possible = last.get("role") == "assistant" and not last.get("tool_calls")
    if asked is True and not is_possible:
        raise RequestError(
            "continue_final_message needs a last message of the assistant, without tool calls; add one, or "
            "leave the field out"
        )
    return is_possible and asked is not False


def _continued(prompt: str, message: Facts, template: str) -> tuple[str, str]:
    """Return the prompt with a begun answer, as llama-server appends it, and the last tag of reasoning.

    The prompt may have opened the reasoning. If the message has none, it is closed at once; a message of
    reasoning alone is continued there.
    """
    content, reasoning = message.get("content"), str(message.get("reasoning_content") or "")
    parts = content if isinstance(content, list) else []
    answer = content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in parts)
    opened = opened_by(prompt)
    start, end = opened or next((tags for tags in TAGS if tags[0] in template), TAGS[0])
    written = tags_in(answer)
    if not reasoning and written:
        # The reasoning is in the content, as a client sends it back that did not get it separately.
        has_start = answer.startswith(start, written[0][0])
        if opened and has_start:
            answer = answer[written[0][1] :].lstrip("\n")
        return prompt + answer, start if has_start and len(written) == 1 else end
    if opened is None and (not reasoning or start not in template):
        return prompt + answer, end
    if opened is None:
        prompt += f"{start}\n"
    if not answer:
        return prompt + reasoning, start
    return f"{prompt}{reasoning}\n{end}\n\n{answer}", end


def _protected(
    tokenizer: Tokenizer, messages: Sequence[Facts], variables: Facts, template: str
) -> tuple[list[Facts], Facts, StandIns]:
    (found, others), stand_ins = tokenizer.special_texts.protect((messages, variables), template)
    return (
        [_with_tags(after, before) for after, before in zip(found, messages, strict=True)],
        others,
        stand_ins,
    )


def _with_tags(message: Facts, before: Facts) -> Facts:
    """Return a protected message with the original tags around its reasoning, if it is an assistant's.

    Clients that did not get the reasoning separately send it back in the content, where templates search for
    its tags. A message whose reasoning is separate has none in its content. The tags cannot begin a turn, and
    all other text stays protected.
    """
    content, written = message.get("content"), before.get("content")
    if before.get("role") != "assistant" or before.get("reasoning_content"):
        return message
    if not isinstance(content, str) or not isinstance(written, str):
        return message
    for start, end in tags_in(written):
        content = content[:start] + written[start:end] + content[end:]
    return {**message, "content": content}


def _text_of(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.decode([token], skip_special=False)
