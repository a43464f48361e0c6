"""Models' names as Ollama's clients write them."""

from anespec.runtime.server.models import Models

LATEST = ":latest"
"""The tag of a name that is written without one."""


def known_as(models: Models, name: str) -> str:
    """The id of the model that is called so; the name itself where there is none."""
    ids = {card.id for card in models.cards}
    return name if name in ids else name.removesuffix(LATEST)
