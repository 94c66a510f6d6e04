"""HTTP/1.1 on the event loop: one connection, its requests one after the other.

Why not a server that is there already: granian reads on threads of its own, and handing each request over to the event loop
and back costs more than our whole dispatch (decision 0006). Here the parser (httptools, which is llhttp in strict mode)
runs where the bytes arrive, and the answer goes out in one write. What could be read in two ways is refused: two lengths, a
length beside chunks, folded headers, bare line feeds, a coding that we do not undo.

Headers that were read before are not read again: see heads.py.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import Any, Final, Protocol, TypeAlias, cast

import httptools

from headgate.gateway.answering import problem
from headgate.gateway.exchange import Exchange, Heads, Target
from headgate.gateway.heads import MOST_BYTES, MOST_HEADERS, QUERY_SIGNS, Head, KnownHeads, first_line
from headgate.kit.problems import HeadgateError, Malformed, MethodNotAllowed

MOST_HEADER_BYTES: Final = 65_536
MOST_PIPELINED: Final = 16
IDLE_SECONDS: Final = 75.0
HEAD_SECONDS: Final = 15.0
STUCK_SECONDS: Final = 45.0
LINGER_SECONDS: Final = 2.0
CHANCES: Final = 4
MOST_UNSENT: Final = 65_536
MOST_ASKED: Final = 2048

_METHODS: Final = {method.encode(): method for method in ("GET", "POST", "PUT", "DELETE")}

# The last request of a connection, for the next that differs from it only in its query: what stands before the query,
# what stands behind it, and what it asked for.
_Asked: TypeAlias = tuple[bytes, bytes, Target]


class HeadTooLarge(HeadgateError):
    """The request's headers are larger than 64 kB."""

    code, status = "headers_too_large", 431


class HeadTimeout(HeadgateError):
    """The request's headers did not arrive in time."""

    code, status = "request_timeout", 408


class CodingUnsupported(HeadgateError):
    """A request body comes plain or chunked, in no other transfer coding."""

    code, status = "coding_unsupported", 501


class VersionUnsupported(HeadgateError):
    """This port speaks HTTP/1.1."""

    code, status = "version_unsupported", 505


class TooManyConnections(HeadgateError):
    """This process holds as many connections as it may; try again in a moment."""

    code, status = "too_many_connections", 503


class House(Protocol):
    """What a connection needs of the listener that it belongs to."""

    heads: Heads
    known: KnownHeads
    now: float
    stopping: bool

    def arrived(self, connection: Connection) -> bool:
        """A connection was made; tell whether there is room for it."""

    def left(self, connection: Connection) -> None:
        """A connection was lost."""

    def serve(self, exchange: Exchange) -> None:
        """Start answering a request."""

    def flush_later(self, connection: Connection) -> None:
        """Flush this connection at the end of this turn of the loop."""


class Connection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_answering", "_asked", "_between", "_block", "_chances", "_drains", "_fed", "_head", "_head_bytes", "_headers",
        "_in_head", "_lingering", "_parser", "_plain", "_queue", "_reading", "_reads", "_refused", "_serving", "_target",
        "_transport", "_unsent", "_unserved", "_url", "client", "full", "heads", "house", "server", "since",
    )  # fmt: skip

    def __init__(self, house: House) -> None:
        self.house = house
        self.heads = house.heads
        self.since = house.now
        self.full = False
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int] | None = None
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = False
        self._between = True
        self._plain: Exchange | None = None
        self._chances = CHANCES
        self._unsent = b""
        self._block = b""
        self._head = Head([], {})
        self._target: Target | None = None
        self._asked: _Asked | None = None
        self._head_bytes = 0
        self._fed = 0
        self._reading: Exchange | None = None
        self._unserved: Exchange | None = None
        self._answering: Exchange | None = None
        self._queue: deque[Exchange] = deque()
        self._refused: HeadgateError | None = None
        self._reads = True
        self._serving = False
        self._lingering = False
        self._drains: list[asyncio.Future[None]] = []

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.client = _address(transport.get_extra_info("peername"))
        self.server = _address(transport.get_extra_info("sockname"))
        if not self.house.arrived(self):
            self._refuse(TooManyConnections(retry_after=1))

    def connection_lost(self, exc: Exception | None) -> None:
        self.house.left(self)
        for exchange in (self._answering, *self._queue):
            if exchange is not None:
                exchange.lose()
        self._queue.clear()
        self._answering = self._reading = self._unserved = self._plain = None
        self._parser = None
        self._settle_drains()

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._refused is not None:
            return
        if self._answering is None and self._chances and self._answer_known(data):
            return
        self._fed = len(data)
        fresh = self._between
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._no_upgrade()
        except httptools.HttpParserCallbackError as error:
            reason = error.__context__
            self._refuse(reason if isinstance(reason, HeadgateError) else Malformed("The request could not be read."))
        except httptools.HttpParserInvalidMethodError:
            known = data[:1].isalpha()
            self._refuse(
                MethodNotAllowed("This method is not known here.") if known else Malformed("This is not HTTP.")
            )
        except httptools.HttpParserError as error:
            self._refuse(Malformed(f"The request is not HTTP/1.1: {error}."))
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEADER_BYTES:
                self._refuse(HeadTooLarge())
        if self._plain is not None and self._between:
            plain, self._plain = self._plain, None
            if fresh and self._chances:
                self._remember(data, plain.target.head)
        if self._unserved is not None:
            # Not from within the parser: an answer may be out at once, and close the connection.
            exchange, self._unserved = self._unserved, None
            self.house.serve(exchange)

    def eof_received(self) -> None:
        """A client that closes its side has left: returning None closes ours."""

    def pause_writing(self) -> None:
        self.full = True
        self.since = self.house.now
        self._stop_reading()

    def resume_writing(self) -> None:
        self.full = False
        self._settle_drains()
        self.go_on_reading()
        self._next()

    # The parser's side.

    def on_message_begin(self) -> None:
        self._between = False
        self._plain = None

    def on_url(self, url: bytes) -> None:
        if not self._in_head:
            self._in_head = True
            self.since = self.house.now
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # not a trailer
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        url, headers = self._url, self._headers
        may_be_large = self._head_bytes + self._fed > MOST_HEADER_BYTES
        if may_be_large and len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > MOST_HEADER_BYTES:
            raise HeadTooLarge
        self._url, self._headers, self._in_head, self._head_bytes = b"", [], False, 0
        parser = self._parser
        version = parser.get_http_version()
        old = version != "1.1"
        if old and version != "1.0":
            raise VersionUnsupported
        names = dict(headers)
        if b"transfer-encoding" in names and (names[b"transfer-encoding"].lower() != b"chunked" or old):
            raise CodingUnsupported
        if not old and (b"host" not in names or (len(names) != len(headers) and _twice(b"host", headers))):
            raise Malformed("A request needs one Host header.")
        path, _, query = url.partition(b"?")
        if path[:1] != b"/":
            path = _origin_form(path)
        head = Head(headers, names)
        exchange = Exchange(self, Target(parser.get_method().decode(), path, head), query)
        exchange.keep_alive = parser.should_keep_alive()
        exchange.old = old
        if b"expect" in names and names[b"expect"].lower() == b"100-continue":
            exchange.expect()
        if not old and exchange.keep_alive and head.length is not None:
            self._plain = exchange
        self._reading = exchange
        if self._answering is None and not self._queue and not self.full:
            self._answering = self._unserved = exchange
        else:
            self._queue.append(exchange)
            if len(self._queue) >= MOST_PIPELINED:
                self._stop_reading()

    def on_body(self, chunk: bytes) -> None:
        if self._reading is not None and self._reading.feed(chunk):
            self._stop_reading()

    def on_message_complete(self) -> None:
        self._between = True
        if self._reading is not None:
            self._reading.end()
            self._reading = None

    # The exchange's and the listener's side.

    def write(self, data: bytes) -> None:
        """Send bytes; whoever sends many looks at `full` and waits for `drained`."""
        if self._unsent:
            data, self._unsent = self._unsent + data, b""
        if not self._transport.is_closing():
            self._transport.write(data)

    def write_whole(self, data: bytes) -> None:
        """Send a whole answer, together with all that are ready in this turn of the loop.

        A write wakes whoever waits for it, and that costs more than to answer while they sleep. Between the writes of many
        answers, one right after the other, there is no time to fall asleep again.
        """
        if self._unsent:
            self._unsent += data
            if len(self._unsent) > MOST_UNSENT:
                self.flush()  # whoever asks for much at once is slowed down by what they do not take
        else:
            self._unsent = data
            self.house.flush_later(self)

    def flush(self) -> None:
        """Send what was put off."""
        data, self._unsent = self._unsent, b""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the client has taken most of what was sent, or has left."""
        if self.full and not self._transport.is_closing():
            future = asyncio.get_running_loop().create_future()
            self._drains.append(future)
            await future

    def go_on_reading(self) -> None:
        """Read again, if there is room for what comes."""
        if not self._reads and not self.full and len(self._queue) < MOST_PIPELINED and not self._transport.is_closing():
            self._reads = True
            self._transport.resume_reading()

    def answered(self, exchange: Exchange) -> None:
        """The answer is out: go on with the next request, or close."""
        if exchange is not self._answering:
            return
        self._answering = None
        self.since = self.house.now
        if not exchange.keep_alive or self.house.stopping:
            self._close(complete=exchange.complete)
        elif self._queue or self._refused is not None:
            self._next()
        elif not self._reads:
            self.go_on_reading()

    def close_if_idle(self) -> None:
        """Close unless a request is under way."""
        if self._answering is None and not self._queue and not self._lingering and self._refused is None:
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        """Break the connection; what was answered before is sent."""
        self.flush()
        self._transport.abort()

    def sweep(self, now: float) -> None:
        """End what has lasted too long."""
        lasted = now - self.since
        if self.full:
            if lasted > STUCK_SECONDS:
                self._transport.abort()
        elif self._answering is not None:
            pass  # the application has its own deadlines
        elif self._lingering:
            if lasted > LINGER_SECONDS:
                self._transport.abort()
        elif self._in_head:
            if lasted > HEAD_SECONDS:
                self._refuse(HeadTimeout())
        elif lasted > IDLE_SECONDS:
            self._transport.close()

    def _remember(self, data: bytes, head: Head) -> None:
        """Keep the headers of a request that came alone and whole."""
        line = first_line(data)
        ends = data.find(b"\r\n\r\n") + 4
        if line is None or len(data) - ends != head.length:
            return
        if ends - line.end() <= MOST_BYTES and len(head.pairs) <= MOST_HEADERS:
            self._block, self._head = data[line.end() : ends], head
            self.house.known.add(self._block, head)
            self._chances -= 1  # a proxy's connection brings others' headers each time

    def _answer_known(self, data: bytes) -> bool:
        """Take a whole request whose headers were read before; False if it has to be parsed after all."""
        if not self._between or self._queue or self.full:
            return False
        if self._asked is not None and len(data) <= MOST_HEADER_BYTES:
            before, after, asked = self._asked
            if data.startswith(before) and data.endswith(after):
                query = data[len(before) : -len(after)]
                if query.translate(QUERY_SIGNS) == query:
                    self._take_known(asked, query, b"")
                    return True
        line = first_line(data)
        if line is None:
            return False
        begins = line.end()
        ends = data.find(b"\r\n\r\n", begins - 2) + 4
        block = data[begins:ends]
        if ends > MOST_HEADER_BYTES:
            return False
        if block != self._block:
            head = self.house.known.find(block)
            if head is None:
                return False
            self._block, self._head = block, head
        head = self._head
        if len(data) - ends != head.length:
            return False
        verb, path, query = line.groups(b"")
        method = _METHODS[verb]
        target = self._target
        if target is None or target.path != path or target.head is not head or target.method != method:
            target = Target(method, path, head)
        if len(data) <= MOST_ASKED:
            self._target = target
            if query and not head.length:
                at = line.start(3)
                self._asked = (data[:at], data[at + len(query) :], target)
        self._take_known(target, query, data[ends:])
        return True

    def _take_known(self, target: Target, query: bytes, body: bytes) -> None:
        exchange = self._answering = Exchange(self, target, query)
        if body:
            exchange.feed(body)
        exchange.complete = True
        self._chances = CHANCES
        self.house.serve(exchange)

    def _next(self) -> None:
        """Serve what has queued up. A request that is answered at once comes by here again, and leaves the next to us."""
        if self._serving:
            return
        self._serving = True
        while self._queue and self._answering is None and not self.full:
            self._answering = self._queue.popleft()
            self.house.serve(self._answering)
        self._serving = False
        if self._queue or self._answering is not None or self.full or self._refused is None:
            self.go_on_reading()
        elif not self._lingering and not self._transport.is_closing():
            self._say_refused(self._refused)

    def _no_upgrade(self) -> None:
        """We speak nothing but HTTP/1.1: a wish for another protocol is ignored, and what follows it is not ours."""
        exchange = self._answering if not self._queue else self._queue[-1]
        self._lingering = True
        if exchange is None:
            return
        exchange.keep_alive = False
        if not exchange.target.headers.keys().isdisjoint((b"content-length", b"transfer-encoding")):
            exchange.fail(Malformed("A request with a body cannot ask for another protocol."))

    def _refuse(self, error: HeadgateError) -> None:
        """Answer what was asked before, then say what was wrong and close."""
        if self._refused is not None:
            return
        self._refused = error
        self._in_head = False
        self._stop_reading()
        reading, self._reading = self._reading, None
        if reading is not None and not reading.complete:
            reading.fail(error)  # its own answer says so
            self._refused = None
            self._lingering = True
        elif self._answering is None and not self._queue:
            self._say_refused(error)

    def _say_refused(self, error: HeadgateError) -> None:
        request_id = secrets.token_hex(8)
        status, head, body = problem(error, request_id)
        own = b"x-request-id: %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (request_id.encode(), len(body))
        self.write(self.heads.dated(status) + head + own + body)
        self._close(complete=False)

    def _close(self, *, complete: bool) -> None:
        """Close once all is sent. Of a request that still arrives the rest is read first: its reset would take the answer along."""
        self.flush()
        self._queue.clear()
        if complete:
            self._transport.close()
            return
        self._lingering = True
        self.since = self.house.now
        if self._transport.can_write_eof():
            self._transport.write_eof()
        if not self._reads:
            self._reads = True
            self._transport.resume_reading()

    def _stop_reading(self) -> None:
        if self._reads and not self._transport.is_closing():
            self._reads = False
            self._transport.pause_reading()

    def _settle_drains(self) -> None:
        for future in self._drains:
            if not future.done():
                future.set_result(None)
        self._drains.clear()


def _twice(name: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
    return sum(each == name for each, _ in headers) > 1


def _origin_form(target: bytes) -> bytes:
    """Give the path of a target that is a whole URL; `*` stays what it is."""
    if target == b"*":
        return target
    scheme, slashes, rest = target.partition(b"://")
    if not slashes or scheme.lower() not in (b"http", b"https"):
        raise Malformed("The request's target is not a path.")
    slash = rest.find(b"/")
    return b"/" if slash < 0 else rest[slash:]


def _address(name: Any) -> tuple[str, int] | None:
    return (name[0], name[1]) if isinstance(name, tuple) else None
