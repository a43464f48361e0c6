"""A prompt that runs: all its choices at once, waited for from a thread or an event loop."""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from anespec.results import Choice, Completion

if TYPE_CHECKING:
    from anespec.runtime.completion import TextStream


class Pending:
    """The runs that will continue a prompt. Leaving a `with` block cancels the remaining ones."""

    def __init__(self, prompt_ids: Sequence[int], runs: "Sequence[TextStream]") -> None:
        """Begin all of them concurrently, or none.

        Raises:
            RequestError: the prompt cannot be served.
            AnespecError: the model is closed.
        """
        from anespec.runtime.completion import start_together

        self._prompt_ids = tuple(prompt_ids)
        self._runs = tuple(runs)
        try:
            start_together(self._runs)
        except BaseException:
            self.cancel()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Give up what is left."""
        for run in self._runs:
            run.cancel()

    def result(self) -> Completion:
        """Wait for the end.

        Raises:
            AnespecError: a sequence failed, or was given up.
        """
        return Completion(self._prompt_ids, tuple(Choice.of(run.summary) for run in self._runs))

    async def aresult(self) -> Completion:
        """The same without blocking the event loop."""
        for run in self._runs:
            async for _ in run:
                pass
        return self.result()
