"""A reply that somebody waits for: a future, and for who has no task a shorter way.

A future calls back in a turn of the loop of its own, which costs more than most of what is done with the reply. Whoever sets
`directly` instead is called in the very moment in which the reply is there; such a function raises nothing.
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
    """A reply that is on its way; whoever makes one sets `directly`, to None if nobody wants to be called."""

    __slots__ = ("directly",)

    directly: Callable[[Any], None] | None

    def answer(self, reply: Reply) -> None:
        """Settle it, unless whoever waited has given up."""
        if not self.done():
            self.set_result(reply)
            # As _tell, without another call: this is how nearly all of them end.
            directly, self.directly = self.directly, None
            if directly is not None:
                directly(self)

    def fail(self, error: Exception) -> None:
        """Settle it with an error, unless whoever waited has given up."""
        if not self.done():
            self.set_exception(error)
            self._tell()

    def _tell(self) -> None:
        # Let go of it first: it often holds us, and a circle would be left to the garbage collector.
        directly, self.directly = self.directly, None
        if directly is not None:
            directly(self)
