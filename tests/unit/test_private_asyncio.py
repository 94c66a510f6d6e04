"""The gateway uses one private attribute of asyncio; a later Python has to be looked at first."""

from __future__ import annotations

import asyncio
import sys

from headgate.gateway.request_context import NEWEST_PYTHON


def test_the_private_attribute_of_futures_is_as_expected() -> None:
    assert sys.version_info[:2] <= NEWEST_PYTHON, "see gateway/request_context.py, then raise NEWEST_PYTHON"
    loop = asyncio.new_event_loop()
    try:
        future = loop.create_future()
        for _ in range(2):  # the second await fails unless the attribute was reset
            assert future.__await__().send(None) is future
            assert future._asyncio_future_blocking
            future._asyncio_future_blocking = False
        future.set_result(1)
    finally:
        loop.close()
