"""One answer of an upstream, read strictly as its bytes come: no doubt about where it ends is passed on.

The parser refuses two lengths, a length beside chunks, bad chunks, folded lines, bare line feeds and control signs. What
it would let through and we do not: codings other than chunks, other protocols, and an upgrade that nobody asked for.

An upstream may also try to keep us busy: with tiny chunks, or with headers or trailers that do not end. So one step parses
16 kB at most, and what is no body (heads, chunk sizes, trailers) may have 64 kB in a row.
"""

from __future__ import annotations

from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

Headers = list[tuple[bytes, bytes]]
HEAD_BYTES: Final = 65_536
STEP_BYTES: Final = 16_384
VERSIONS: Final = frozenset({"1.0", "1.1"})
BODILESS: Final = frozenset({204, 304})


class BadAnswer(Exception):
    """What the upstream sent is not an answer in HTTP/1.1."""


class ClientResponse:
    """Reads one answer; interim ones before it are passed over."""

    __slots__ = ("_bodiless", "_body_left", "_chunked", "_length_known", "_now", "_overhead", "_parser", "buffered",
                 "chunks", "complete", "first_byte", "headers", "keep", "ready", "status")  # fmt: skip

    def __init__(self, method: str) -> None:
        self.status = 0
        self.headers: Headers = []
        self.ready = False
        self.complete = False
        self.keep = False
        self.first_byte: float | None = None
        self.chunks: list[bytes] = []
        self.buffered = 0
        self._bodiless = method == "HEAD"
        self._length_known = False
        self._now = 0.0
        self._overhead = 0
        self._chunked = False
        self._body_left: int | None = None
        self._parser = HttpResponseParser(self)

    def feed(self, data: bytes, now: float) -> int:
        """Take as much of what came as one step may cost, and give how much that was; raises BadAnswer."""
        if self._surplus():
            return len(data)
        self._now = now
        if self.first_byte is None:
            self.first_byte = now
        size = len(data)
        if not self.ready or self._chunked:
            size = min(size, STEP_BYTES)
        elif self._body_left is not None:
            size = min(size, self._body_left)
        self._overhead += size
        try:
            self._parser.feed_data(data[:size])
        except (HttpParserError, HttpParserUpgrade) as error:
            if self._surplus():
                return len(data)
            raise BadAnswer(str(error.__context__ or error)) from error
        if self.complete:
            self.keep = self.keep and size == len(data)
            return len(data)
        if self._overhead > HEAD_BYTES:
            raise BadAnswer("its headers are too large")
        return size

    @property
    def sized(self) -> bool:
        """Tell whether the head says how long the body is: such a body is no stream of events."""
        return self._body_left is not None

    def take(self) -> bytes:
        """Give what of the body has come since the last time."""
        taken = self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
        self.chunks.clear()
        self.buffered = 0
        return taken

    def end(self) -> bool:
        """Hear that the connection ended; tell whether the answer is whole with that."""
        self.keep = False
        if self.ready and not self._length_known:
            self.complete = True
        return self.complete

    def _surplus(self) -> bool:
        """Tell whether the answer is whole already: what comes then answers nothing, and the connection must end."""
        if self.complete:
            self.keep = False
        return self.complete

    # What the parser calls

    def on_message_begin(self) -> None:
        if not self._surplus() and self.first_byte is None:
            self.first_byte = self._now

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.ready:  # else it is a trailer
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        status: int = self._parser.get_status_code()
        if self._parser.get_http_version() not in VERSIONS or status == 101 or status < 100:
            raise BadAnswer("it speaks another protocol")
        if status < 200:
            return
        size = 0
        for name, value in self.headers:
            size += len(name) + len(value)
            if name == b"transfer-encoding":
                if self._length_known or value.lower() != b"chunked":
                    raise BadAnswer("its transfer coding is not chunked")
                self._length_known = self._chunked = True
            elif name == b"content-length":
                self._length_known = True
                self._body_left = int(value)  # the parser has seen to it that it is one number
        if size > HEAD_BYTES:
            raise BadAnswer("its headers are too large")
        self.status = status
        self.ready = True
        if self._bodiless or status in BODILESS:
            self._length_known = True
            self._end_of_message()

    def on_body(self, data: bytes) -> None:
        self._overhead = 0
        if not self._surplus():
            self.chunks.append(data)
            self.buffered += len(data)
            if self._body_left is not None:
                self._body_left -= len(data)

    def on_message_complete(self) -> None:
        if self.ready:
            if not self.complete:
                self._end_of_message()
            return
        # An interim answer says nothing about when the request was counted; the next one does.
        self.headers = []
        self.first_byte = None

    def _end_of_message(self) -> None:
        self.complete = True
        self.keep = self._parser.should_keep_alive()
