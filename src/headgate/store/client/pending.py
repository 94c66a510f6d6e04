"""A reply that is awaited: a future, with one optional callback that is called at once.

A future's done callbacks each take a turn of the loop, which costs more than most of the work on a reply. `callback` is called
in the moment in which the reply is set; it must not raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from headgate.store.client.link import Reply

    _Future: TypeAlias = asyncio.Future[Reply]
else:
    _Future = asyncio.Future


class PendingReply(_Future):
    """A reply that has been asked for; its creator sets `callback`, to None if there is none."""

    __slots__ = ("callback",)

    callback: Callable[[Any], None] | None

    def answer(self, reply: Reply) -> None:
        """Set the reply, unless the caller has given up."""
        if not self.done():
            self.set_result(reply)
            # As _call_back, without another call, since nearly all replies take this path.
            callback, self.callback = self.callback, None
            if callback is not None:
                callback(self)

    def fail(self, error: Exception) -> None:
        """Set an error, unless the caller has given up."""
        if not self.done():
            self.set_exception(error)
            self._call_back()

    def _call_back(self) -> None:
        # Cleared first: it often refers to this reply, and a reference cycle would be left to the garbage collector.
        callback, self.callback = self.callback, None
        if callback is not None:
            callback(self)
