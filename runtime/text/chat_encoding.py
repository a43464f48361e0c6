"""Encode a conversation as a prompt's tokens, with the model's chat template."""

from collections.abc import Mapping, Sequence

from anespec.runtime.text.conversation import TAIL, ChatPrompt
from anespec.runtime.text.reasoning import tags_in
from anespec.runtime.text.stand_ins import NO_STAND_INS, StandIns
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

    `variables` are further variables of the template, such as `tools`. Only the template can write special
    tokens: a special token that is spelled out in a message, a tool or a variable is encoded as plain text,
    unless `allow_special`. Exempt are the tags around the reasoning with which an assistant's message begins.

    Raises:
        RequestError: the model has no template, the template refuses the messages, or they cannot fit into
            `context` tokens.
    """
    template = tokenizer.chat_template
    if template is None:
        raise RequestError(
            "this model has no chat template, so it cannot answer messages; name a template, as in "
            "--chat-template chatml, or give a plain prompt to continue, with `anespec generate -p TEXT` or "
            "a daemon's /v1/completions"
        )
    messages = as_template_reads(conversation, template)
    stand_ins = NO_STAND_INS
    if not allow_special:
        messages, variables, stand_ins = _protected(tokenizer, messages, variables, template)
    rendered = render_chat(
        template,
        messages,
        add_generation_prompt=True,
        bos=_text_of(tokenizer, tokenizer.bos_id),
        eos=_text_of(tokenizer, tokenizer.eos_id),
        variables=variables,
        escaped_as=stand_ins.escaped_as,
    )
    require_fitting(rendered, tokenizer, context)
    text = stand_ins.unescape(rendered)
    ids = tuple(tokenizer.encode(text, add_special=False, parse_special=True, stand_ins=stand_ins))
    tail = tokenizer.decode(ids[-TAIL:], skip_special=False)
    return ChatPrompt(ids, tail, tokenizer.chat_ends, tokenizer.chat_is_spaced)


def _protected(
    tokenizer: Tokenizer, messages: Sequence[Facts], variables: Facts | None, template: str
) -> tuple[list[Facts], Facts | None, StandIns]:
    (found, others), stand_ins = tokenizer.special_texts.protect((messages, variables), template)
    return (
        [_with_tags(after, before) for after, before in zip(found, messages, strict=True)],
        others,
        stand_ins,
    )


def _with_tags(message: Facts, before: Facts) -> Facts:
    """Return a protected message with the original tags around its reasoning, if it is an assistant's.

    Clients that did not get the reasoning separately send it back in the content, where templates search for
    its tags. The tags cannot begin a turn, and all other text stays protected.
    """
    content, written = message.get("content"), before.get("content")
    if before.get("role") != "assistant" or not isinstance(content, str) or not isinstance(written, str):
        return message
    for start, end in tags_in(written):
        content = content[:start] + written[start:end] + content[end:]
    return {**message, "content": content}


def _text_of(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.decode([token], skip_special=False)
