"""Follows a watch for as long as the client is open: after every break it is opened again, with backoff and jitter."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError, StoreUnavailable

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0

log = get_logger()
E = TypeVar("E")


async def follow(
    watch: Callable[[], AsyncGenerator[E, None]],
    take: Callable[[E], Awaitable[bool]],
    on_break: Callable[[HeadgateError | None], float | None],
    **watched: str | None,
) -> None:
    """Pass each event of a watch to `take`, and open the watch again when it breaks or `take` gives False.

    After each break, `on_break` is called with the refusal if there was one; it may give the next pause. This returns when the
    client is closed. `watched` says in the log what is watched.
    """
    pause = FIRST_PAUSE
    while True:
        refusal: HeadgateError | None = None
        try:
            async with aclosing(watch()) as events:
                async for event in events:
                    pause = FIRST_PAUSE
                    if not await take(event):
                        break
        except Closed:
            return
        except HeadgateError as error:
            if error.status < 500 and not isinstance(error, StoreUnavailable):
                refusal = error
            (log.warning if refusal else log.debug)("watch broke", **watched, error=str(error))
        except Exception as error:  # noqa: BLE001  # whatever a stream may bring, the watch goes on
            log.warning("watch failed", **watched, error=repr(error))
        wanted = on_break(refusal)
        pause = pause if wanted is None else wanted
        # Jitter, so that a thousand clients do not come back in the same instant.
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 2, LONGEST_PAUSE)
