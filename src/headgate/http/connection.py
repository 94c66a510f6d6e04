"""HTTP/1.1 on the event loop: one connection, whose requests are answered in order.

httptools (llhttp in strict mode) parses where the bytes arrive, and a response leaves in one write; a server with threads of
its own costs more for each request than our whole dispatch (decision 0006). Requests that two parsers could read differently
are refused: two lengths, a length together with chunks, folded headers, bare line feeds, an unknown transfer coding.

One read may bring 256 kB with thousands of requests, one-byte chunks or trailers. So the parser is fed in pieces: one
iteration of the event loop parses at most 16 kB and starts at most 16 requests. The rest stays unparsed until the next
iteration, and reading is paused until then. At most 64 kB in a row may be headers, chunk sizes and trailers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

from headgate.http import problems
from headgate.http.exchange import Exchange
from headgate.http.header_cache import ConnectionHeaderCache
from headgate.http.request_head import RequestHead, RequestTarget, is_repeated, origin_form
from headgate.http.responses import last_problem
from headgate.kit.problems import HeadgateError, Malformed, MethodNotAllowed

if TYPE_CHECKING:
    from headgate.http.listener import Listener

MOST_HEADER_BYTES: Final = 65_536
# Short header lines take forty times the memory of their bytes.
MOST_HEADER_LINES: Final = 1000
MOST_PIPELINED: Final = 16
# How much one iteration of the event loop parses, and how much of that each request counts for.
STEP_BYTES: Final = 16_384
REQUEST_BYTES: Final = STEP_BYTES // MOST_PIPELINED
# Ends the headers of a request, and a chunked body.
HEADERS_END: Final = b"\r\n\r\n"
IDLE_SECONDS: Final = 75.0
HEADER_SECONDS: Final = 15.0
STUCK_SECONDS: Final = 45.0
LINGER_SECONDS: Final = 2.0
MOST_UNSENT: Final = 65_536


class ServerConnection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_between_requests", "_body_left", "_cache", "_cacheable", "_current", "_drain_waiters", "_headers", "_in_headers",
        "_lingering", "_overhead", "_parser", "_pipeline", "_read_paused", "_receiving", "_refusal", "_serving", "_transport",
        "_unparsed", "_unsent", "_unserved", "_url", "client", "listener", "server", "state_since", "status_lines", "unused",
        "write_paused",
    )  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.status_lines = listener.status_lines
        self.state_since = listener.now
        self.write_paused, self.unused = False, True
        self.client = self.server = cast("tuple[str, int] | None", None)
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = self._unparsed = self._unsent = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_headers, self._between_requests = False, True
        self._cache = None if listener.header_cache is None else ConnectionHeaderCache(listener.header_cache)
        self._overhead = self._body_left = 0
        # The exchange that is being answered, the one whose body arrives, the one that was parsed and is not served yet,
        # and the one whose headers may be cached.
        self._current = self._receiving = self._unserved = self._cacheable = cast("Exchange | None", None)
        self._pipeline: deque[Exchange] = deque()
        self._refusal: HeadgateError | None = None
        self._read_paused = self._serving = self._lingering = False
        self._drain_waiters: list[asyncio.Future[None]] = []

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.client = peer[:2] if isinstance(peer, tuple) else None
        self.server = own[:2] if isinstance(own, tuple) else None
        if (refusal := self.listener.add(self)) is not None:
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self.listener.remove(self)
        for exchange in (self._current, *self._pipeline):
            if exchange is not None:
                exchange.disconnect()
        self._pipeline.clear()
        self._current = self._receiving = self._unserved = self._cacheable = None
        self._parser = None
        self._wake_drain_waiters()

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._refusal is not None:
            return
        if self._unparsed:
            self._unparsed += data
            return
        busy = self._current is not None or self._pipeline or self.write_paused or not self._between_requests
        found = None if busy or self._cache is None else self._cache.find(data)
        if found is None:
            self._parse(data)
            return
        target, query, body = found
        exchange = self._current = Exchange(self, target, query)
        if body:
            exchange.feed(body)
        exchange.complete = True
        self.listener.serve(exchange)

    def parse_more(self) -> None:
        """Parse more of the data of an earlier iteration of the event loop; resume reading when all of it is parsed."""
        if self._unparsed and not self._read_paused and not self._is_ending():
            data, self._unparsed = self._unparsed, b""
            self._parse(data)
            if not self._unparsed:
                self._continue_reading()

    def eof_received(self) -> None:
        """Return None, which closes our side: a client that closes its side has disconnected."""

    def pause_writing(self) -> None:
        self.write_paused = True
        self.state_since = self.listener.now
        self._pause_reading()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._wake_drain_waiters()
        self.resume_reading()
        self._serve_pipeline()

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._between_requests = False
        self._cacheable = None

    def on_url(self, url: bytes) -> None:
        if not self._in_headers:
            self._in_headers = True
            self.state_since = self.listener.now
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # not a trailer
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        url, headers = self._url, self._headers
        may_be_large = self._overhead > MOST_HEADER_BYTES
        if len(headers) > MOST_HEADER_LINES:
            raise problems.HeadTooLarge(f"The request has more than {MOST_HEADER_LINES} headers.")
        if may_be_large and len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > MOST_HEADER_BYTES:
            raise problems.HeadTooLarge
        self._url, self._headers, self._in_headers = b"", [], False
        parser = self._parser
        version = parser.get_http_version()
        http_1_0 = version == "1.0"
        if not http_1_0 and version != "1.1":
            raise problems.VersionUnsupported
        by_name = dict(headers)
        repeats = len(by_name) != len(headers)
        if b"transfer-encoding" in by_name:
            chunked = by_name[b"transfer-encoding"].lower() == b"chunked"
            if not chunked or http_1_0 or (repeats and is_repeated(b"transfer-encoding", headers)):
                raise problems.CodingUnsupported
        elif b"content-length" in by_name:
            self._body_left = int(by_name[b"content-length"])  # the parser has checked that it is one number
        if not http_1_0 and (b"host" not in by_name or (repeats and is_repeated(b"host", headers))):
            raise Malformed("A request needs one Host header.")
        path, _, query = url.partition(b"?")
        if path[:1] != b"/":
            path = origin_form(path)
        head = RequestHead(headers, by_name)
        exchange = Exchange(self, RequestTarget(parser.get_method().decode(), path, head), query)
        exchange.keep_alive = parser.should_keep_alive()
        exchange.http_1_0 = http_1_0
        if b"expect" in by_name and by_name[b"expect"].lower() == b"100-continue":
            exchange.expect_continue()
        if not http_1_0 and exchange.keep_alive and head.body_length is not None:
            self._cacheable = exchange
        self._receiving = exchange
        if self._current is None and not self._pipeline and not self.write_paused:
            self._current = self._unserved = exchange
        else:
            self._pipeline.append(exchange)
            if len(self._pipeline) >= MOST_PIPELINED:
                self._pause_reading()

    def on_body(self, chunk: bytes) -> None:
        self._overhead = 0
        if self._body_left:
            self._body_left -= len(chunk)
        if self._receiving is not None and self._receiving.feed(chunk):
            self._pause_reading()

    def on_message_complete(self) -> None:
        self._between_requests = True
        self._overhead = 0
        if self._receiving is not None:
            self._receiving.end_body()
            self._receiving = None

    # Called by exchanges and by the listener.

    def write(self, data: bytes) -> None:
        """Send bytes; a caller with much to send awaits `drain` while `write_paused`."""
        if self._unsent:
            data, self._unsent = self._unsent + data, b""
        if not self._transport.is_closing():
            self._transport.write(data)

    def write_later(self, data: bytes) -> None:
        """Send a whole response at the end of this iteration of the event loop, together with all others.

        A write wakes a client that sleeps, which costs more than the write. A client that gets many responses one right after
        the other does not fall asleep between them.
        """
        if self._unsent:
            self._unsent += data
            if len(self._unsent) > MOST_UNSENT:
                self.flush()  # lets the transport pause writing for a client that pipelines and does not read
        else:
            self._unsent = data
            self.listener.flush_later(self)

    def flush(self) -> None:
        """Send the responses of `write_later` now."""
        data, self._unsent = self._unsent, b""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has read most of what was sent, or has disconnected."""
        if self.write_paused and not self._transport.is_closing():
            future = asyncio.get_running_loop().create_future()
            self._drain_waiters.append(future)
            await future

    def resume_reading(self) -> None:
        """Read again, if there is room for more requests."""
        room = not self.write_paused and len(self._pipeline) < MOST_PIPELINED
        if self._read_paused and room and not self._transport.is_closing():
            self._read_paused = False
            self._continue_reading()

    def response_sent(self, exchange: Exchange) -> None:
        """Serve the next request after a response, or close."""
        if exchange is not self._current:
            return
        self._current = None
        self.unused = False
        self.state_since = self.listener.now
        if not exchange.keep_alive or self.listener.stopping:
            self._close(complete=exchange.complete)
        elif self._pipeline or self._refusal is not None:
            self._serve_pipeline()
        elif self._read_paused:
            self.resume_reading()

    def close_if_idle(self, *, awaits_request: bool = False) -> None:
        """Close unless a request is in progress; with `awaits_request`, also wait for a new connection's first request."""
        if awaits_request and (self.unused or not self._between_requests):
            return
        if self._current is None and not self._pipeline and not self._lingering and self._refusal is None:
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        """Send the responses that are ready, then reset the connection."""
        self.flush()
        self._transport.abort()

    def check_timeouts(self, now: float) -> None:
        """Close the connection if its current state has lasted too long."""
        lasted = now - self.state_since
        if self.write_paused:
            if lasted > STUCK_SECONDS:
                self._transport.abort()
        elif self._current is not None:
            pass  # the application has its own deadlines
        elif self._lingering:
            if lasted > LINGER_SECONDS:
                self._transport.abort()
        elif self._in_headers:
            if lasted > HEADER_SECONDS:
                self._refuse(problems.HeadTimeout())
        elif lasted > IDLE_SECONDS:
            self._transport.close()

    def _parse(self, data: bytes) -> None:
        """Feed the parser as much as one iteration of the event loop may parse; keep the rest for the next."""
        is_start, size = self._between_requests, len(data)
        if size <= STEP_BYTES and data.count(HEADERS_END) < 2:
            self._feed(data)
            parsed = size
        else:
            parsed = self._feed_pieces(data)
        if self._cacheable is not None and self._between_requests:
            exchange, self._cacheable = self._cacheable, None
            if (
                is_start
                and parsed == size
                and self._cache is not None
                and not self._cache.add(data, exchange.target.head)
            ):
                self._cache = None
        if self._unserved is not None:
            self._serve_parsed()
        if parsed < size and not self._is_ending():
            self._unparsed = data[parsed:]
            self._transport.pause_reading()
            self._continue_reading()

    def _feed_pieces(self, data: bytes) -> int:
        """Feed the parser in pieces, each with one request at most; return the number of bytes fed."""
        start, size, budget = 0, len(data), STEP_BYTES
        while start < size and budget > 0 and not self._read_paused and not self._is_ending():
            if self._body_left:
                end = min(start + self._body_left, size)
            else:
                found = data.find(HEADERS_END, start, start + budget)
                end = min(start + budget, size) if found < 0 else found + 4
                budget -= end - start
            self._feed(data[start:end])
            start = end
            if self._between_requests and self._unserved is not None:
                budget -= REQUEST_BYTES
                self._serve_parsed()
        return start

    def _feed(self, piece: bytes) -> None:
        """Feed the parser; refuse data that it does not accept."""
        self._overhead += len(piece)
        # The parser accepts several spaces between the parts of the request line; others may read that differently.
        if self._between_requests and b"  " in piece and b"  " in piece.lstrip(b"\r\n").partition(b"\r\n")[0]:
            self._refuse(Malformed("The parts of a request's first line have one space between them."))
            return
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade()
        except httptools.HttpParserCallbackError as error:
            reason = error.__context__
            self._refuse(reason if isinstance(reason, HeadgateError) else Malformed("The request could not be read."))
        except httptools.HttpParserInvalidMethodError:
            letters = piece[:1].isalpha()
            self._refuse(
                MethodNotAllowed("This method is not known here.") if letters else Malformed("This is not HTTP.")
            )
        except httptools.HttpParserError as error:
            self._refuse(Malformed(f"The request is not HTTP/1.1: {error}."))
        if self._overhead > MOST_HEADER_BYTES:
            self._refuse(problems.HeadTooLarge())

    def _serve_parsed(self) -> None:
        """Serve a parsed request; not in the parser's callback, because the response may close the connection at once."""
        exchange, self._unserved = self._unserved, None
        self.listener.serve(cast("Exchange", exchange))

    def _is_ending(self) -> bool:
        """Tell whether no further request will be read."""
        return self._lingering or self._refusal is not None or self._transport.is_closing()

    def _serve_pipeline(self) -> None:
        """Serve the pipelined requests; a response that is sent at once calls this again, which returns to this loop."""
        if self._serving:
            return
        self._serving = True
        while self._pipeline and self._current is None and not self.write_paused:
            self._current = self._pipeline.popleft()
            self.listener.serve(self._current)
        self._serving = False
        if self._pipeline or self._current is not None or self.write_paused or self._refusal is None:
            self.resume_reading()
        elif not self._lingering and not self._transport.is_closing():
            self._send_refusal(self._refusal)

    def _ignore_upgrade(self) -> None:
        """Answer a request for another protocol as HTTP/1.1, and ignore the bytes that follow it."""
        exchange = self._current if not self._pipeline else self._pipeline[-1]
        self._lingering = True
        if exchange is None:
            return
        exchange.keep_alive = False
        if not exchange.target.headers.keys().isdisjoint((b"content-length", b"transfer-encoding")):
            exchange.fail_body(Malformed("A request with a body cannot ask for another protocol."))

    def _refuse(self, error: HeadgateError) -> None:
        """Answer the earlier requests, then send this problem and close."""
        if self._refusal is not None:
            return
        self._refusal = error
        self._in_headers = False
        self._pause_reading()
        receiving, self._receiving = self._receiving, None
        if receiving is not None and not receiving.complete:
            self._refusal = None
            self._lingering = True
            if receiving.started:
                self.abort()  # a part of its response is sent already
            else:
                receiving.fail_body(error)  # its response is this problem
        elif self._current is None and not self._pipeline:
            self._send_refusal(error)

    def _send_refusal(self, error: HeadgateError) -> None:
        status, rest = last_problem(error)
        self.write(self.status_lines.with_date(status) + rest)
        self._close(complete=False)

    def _close(self, *, complete: bool) -> None:
        """Close after everything is sent; read the rest of an incomplete request first, since a reset would discard the response."""
        self.flush()
        self._pipeline.clear()
        self._unparsed = b""
        if complete:
            self._transport.close()
            return
        self._lingering = True
        self.state_since = self.listener.now
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._read_paused = False
        self._transport.resume_reading()

    def _continue_reading(self) -> None:
        if not self._read_paused and not self._transport.is_closing():
            if self._unparsed:
                self.listener.parse_later(self)
            else:
                self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._read_paused and not self._transport.is_closing():
            self._read_paused = True
            self._transport.pause_reading()

    def _wake_drain_waiters(self) -> None:
        for future in self._drain_waiters:
            if not future.done():
                future.set_result(None)
        self._drain_waiters.clear()
