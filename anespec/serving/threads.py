"""Run long work outside of an event loop, in a thread that the exit of the process does not wait for."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T], unwanted: Callable[[T], None] = lambda result: None) -> T:
    """Return the result of `work`, or raise its exception.

    A conversion takes minutes, and an event loop that ends waits for the threads of its own pool. If the
    caller is cancelled, the work continues, and `unwanted` is called, in a thread, with its result.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def told(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            if error is None:
                threading.Thread(target=unwanted, args=(result,), daemon=True).start()
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(told, result, failure)
        except RuntimeError:
            # The loop has ended.
            if failure is None:
                unwanted(result)  # type: ignore[arg-type]

    threading.Thread(target=run, name="anespec loading", daemon=True).start()
    return await done
