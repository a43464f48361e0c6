"""Do work on a model that generates nothing, such as counting tokens, within the caller's limits."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from starlette.responses import Response

from anespec.runtime.server.answers.leasing import lease
from anespec.runtime.server.http.endpoint import Call
from anespec.runtime.server.models import Leased


async def answer_work(call: Call[Any], name: str | None, work: Callable[[Leased], bytes]) -> Response:
    """Run `work` on the model `name` (None: the default) in a thread, and send the JSON that it returns.

    The bytes of the JSON count against the caller's limit.

    Raises:
        ApiError, AnespecError: the request cannot be served; nothing was sent.
    """
    call.share.pause()
    async with lease(call, name) as leased, AsyncExitStack() as preparing:
        turn = call.daemon.preparations.thread(call.caller, call.size)
        await call.share.wait_for(preparing.enter_async_context(turn))
        await call.share.turn()
        content = await asyncio.to_thread(work, leased)
        call.take(len(content))
        return Response(content, media_type="application/json")
