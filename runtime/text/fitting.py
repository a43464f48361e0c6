"""Check whether a text can be a prompt before it is encoded, which takes time and memory by length."""

from anespec.manifests.errors import LONGER_CONTEXT, PromptTooLongError
from anespec.runtime.text.tokenizer import Tokenizer


def require_fitting(text: str, tokenizer: Tokenizer, context: int) -> None:
    """Refuse a text of more characters than `context` tokens can hold, were each the longest of all.

    Raises:
        PromptTooLongError: it cannot fit.
    """
    if len(text) > context * tokenizer.longest_token:
        raise PromptTooLongError(
            f"the prompt has {len(text)} characters, more than the context of {context} tokens can hold; "
            f"shorten the prompt, or give the model a longer context ({LONGER_CONTEXT})"
        )
