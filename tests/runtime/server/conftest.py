"""The embedded model behind a daemon: it chats, it repeats itself, and four sequences run at a time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_templates import SPECIAL, TEMPLATES, with_template
from chatty_model import write_chatty
from converting import build
from fresh_process import answered_here
from once import Once
from serving import Running, running

import anespec
from anespec.manifests.schema import Target
from anespec.model import Model


@pytest.fixture(scope="session")
def chatty(tmp_path_factory: pytest.TempPathFactory, once: Once) -> Path:
    """An artifact of the embedded model with a chat template, that has the verdict of the exactness gate."""
    folder = tmp_path_factory.mktemp("chatty")
    gguf = write_chatty(folder / "chatty.gguf")

    def make(path: Path) -> None:
        build(gguf, path, target=Target.CPU, context=512, sequences=4)
        with answered_here():
            anespec.load(path).close()

    return once(folder / "chatty.anespec", make, gguf)


@pytest.fixture(scope="session")
def model(chatty: Path) -> Iterator[Model]:
    """It, loaded. It drafts as if passes of all widths cost the same, however busy the machine is."""
    with answered_here():
        loaded = anespec.load(chatty, queue=64)
    loaded._running.take_up(loaded._running.proven, None)
    with loaded:
        yield loaded


@pytest.fixture(scope="session")
def served(model: Model) -> Iterator[Running]:
    """A daemon without keys that serves it as `chatty`."""
    with running({"chatty": model}) as found:
        yield found


@pytest.fixture(scope="session")
def tooled(model: Model) -> Iterator[Running]:
    """The model under several templates, by their names."""
    models = {name: with_template(model, template) for name, template in TEMPLATES.items()}
    for name, markers in SPECIAL.items():
        models[f"{name}-special"] = with_template(model, TEMPLATES[name], markers)
    with running(models) as found:
        yield found
