"""Parses one response, strictly: a response whose end is ambiguous is refused.

The parser refuses two lengths, a length beside chunks, bad chunks, folded lines, bare line feeds and control
characters. We also refuse transfer codings other than chunked, other protocols, and upgrades.

A server may try to use up our CPU with tiny chunks, or with headers or trailers that do not end. So one step parses at
most 16 kB, and at most 64 kB in a row may be something else than the body (heads, chunk sizes, trailers).
"""

from __future__ import annotations

from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

Headers = list[tuple[bytes, bytes]]
HEAD_BYTES: Final = 65_536
STEP_BYTES: Final = 16_384
VERSIONS: Final = frozenset({"1.0", "1.1"})
BODILESS: Final = frozenset({204, 304})


class BadResponse(Exception):
    """The server sent something that is not an HTTP/1.1 response."""


class ClientResponse:
    """Parses one response and skips interim responses before it."""

    __slots__ = ("_bodiless", "_body_left", "_chunked", "_length_known", "_now", "_overhead", "_parser", "buffered",
                 "chunks", "complete", "first_byte", "headers", "keep_alive", "ready", "status")  # fmt: skip

    def __init__(self, method: str) -> None:
        self.status = 0
        self.headers: Headers = []
        self.ready = False
        self.complete = False
        self.keep_alive = False
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
        """Parse at most one step of the data, and give the number of bytes used; raises BadResponse."""
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
            raise BadResponse(str(error.__context__ or error)) from error
        if self.complete:
            self.keep_alive = self.keep_alive and size == len(data)
            return len(data)
        if self._overhead > HEAD_BYTES:
            raise BadResponse("its headers are too large")
        return size

    @property
    def sized(self) -> bool:
        """Tell whether the head has the length of the body; a stream of events has none."""
        return self._body_left is not None

    def take(self) -> bytes:
        """Give the part of the body that arrived since the last call."""
        taken = self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
        self.chunks.clear()
        self.buffered = 0
        return taken

    def end(self) -> bool:
        """Handle the end of the connection; tell whether the response is complete."""
        self.keep_alive = False
        if self.ready and not self._length_known:
            self.complete = True
        return self.complete

    def _surplus(self) -> bool:
        """Tell whether the response is complete already: bytes after it make the connection unusable."""
        if self.complete:
            self.keep_alive = False
        return self.complete

    # Callbacks of the parser

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
            raise BadResponse("it speaks another protocol")
        if status < 200:
            return
        size = 0
        for name, value in self.headers:
            size += len(name) + len(value)
            if name == b"transfer-encoding":
                if self._length_known or value.lower() != b"chunked":
                    raise BadResponse("its transfer coding is not chunked")
                self._length_known = self._chunked = True
            elif name == b"content-length":
                self._length_known = True
                self._body_left = int(value)  # the parser has checked that it is one number
        if size > HEAD_BYTES:
            raise BadResponse("its headers are too large")
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
        # Only the first byte of the final response says when the request was counted.
        self.headers = []
        self.first_byte = None

    def _end_of_message(self) -> None:
        self.complete = True
        self.keep_alive = self._parser.should_keep_alive()
