"""HTTP/1.1 on the event loop: one connection, its requests one after the other.

Why not a server that is there already: granian reads on threads of its own, and handing each request over to the event loop
and back costs more than our whole dispatch (decision 0006). Here the parser (httptools, which is llhttp in strict mode)
runs where the bytes arrive, and the answer goes out in one write. What could be read in two ways is refused: two lengths, a
length beside chunks, folded headers, bare line feeds, a coding that we do not undo.

A read may bring 256 kB, and what is in it costs what its sender likes: thousands of requests, of chunks of one byte, or of
trailers. So the parser is fed pieces. One turn of the loop parses at most 16 kB and begins at most 16 requests; the rest
waits unparsed, and meanwhile nothing more is read. What is no body (heads, chunk sizes, trailers) may have 64 kB in a row.

Headers that were read before are not read again: see heads.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import httptools

from headgate.http import problems
from headgate.http.exchange import Exchange, RequestTarget
from headgate.http.request_head import (
    MOST_BYTES,
    MOST_HEADERS,
    QUERY_SIGNS,
    RequestHead,
    first_line,
    origin_form,
    twice,
)
from headgate.http.responses import last_problem
from headgate.kit.problems import HeadgateError, Malformed, MethodNotAllowed

if TYPE_CHECKING:
    from headgate.http.listener import Listener

MOST_HEADER_BYTES: Final = 65_536
# Short header lines take forty times the memory of their bytes.
MOST_HEADER_LINES: Final = 1000
MOST_PIPELINED: Final = 16
# How much is parsed in one turn of the loop, and how much of it a request counts for that is answered meanwhile.
STEP_BYTES: Final = 16_384
# A request's head ends like this, and so does a body in chunks.
HEAD_END: Final = b"\r\n\r\n"
REQUEST_BYTES: Final = STEP_BYTES // MOST_PIPELINED
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
_Asked: TypeAlias = tuple[bytes, bytes, RequestTarget]


class ServerConnection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_answering", "_asked", "_between", "_block", "_body_left", "_chances", "_drains", "_head", "_headers", "_in_head",
        "_lingering", "_overhead", "_parser", "_plain", "_queue", "_reading", "_reads", "_refused", "_serving", "_target",
        "_transport", "_unparsed", "_unsent", "_unserved", "_url", "client", "full", "heads", "house", "server", "since",
        "unused",
    )  # fmt: skip

    def __init__(self, house: Listener) -> None:
        self.house = house
        self.heads = house.heads
        self.since = house.now
        self.full, self.unused = False, True
        self.client = self.server = cast("tuple[str, int] | None", None)
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url = self._unparsed = self._unsent = self._block = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head, self._between = False, True
        self._chances = CHANCES
        self._head = RequestHead([], {})
        self._target: RequestTarget | None = None
        self._asked: _Asked | None = None
        self._overhead = self._body_left = 0
        self._plain = self._reading = self._unserved = self._answering = cast("Exchange | None", None)
        self._queue: deque[Exchange] = deque()
        self._refused: HeadgateError | None = None
        self._reads = True
        self._serving = self._lingering = False
        self._drains: list[asyncio.Future[None]] = []

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.client = peer[:2] if isinstance(peer, tuple) else None
        self.server = own[:2] if isinstance(own, tuple) else None
        if (refusal := self.house.arrived(self)) is not None:
            self._refuse(refusal)

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
        if self._unparsed:
            self._unparsed += data
        elif self._answering is not None or not self._chances or not self._answer_known(data):
            self._parse(data)

    def parse_on(self) -> None:
        """Parse more of what was read in an earlier turn of the loop, and read on when that was all."""
        if self._unparsed and self._reads and not self._ending():
            data, self._unparsed = self._unparsed, b""
            self._parse(data)
            if not self._unparsed:
                self._read_on()

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
        may_be_large = self._overhead > MOST_HEADER_BYTES
        if len(headers) > MOST_HEADER_LINES:
            raise problems.HeadTooLarge(f"The request has more than {MOST_HEADER_LINES} headers.")
        if may_be_large and len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > MOST_HEADER_BYTES:
            raise problems.HeadTooLarge
        self._url, self._headers, self._in_head = b"", [], False
        parser = self._parser
        version = parser.get_http_version()
        old = version != "1.1"
        if old and version != "1.0":
            raise problems.VersionUnsupported
        names = dict(headers)
        repeats = len(names) != len(headers)
        if b"transfer-encoding" in names:
            chunked = names[b"transfer-encoding"].lower() == b"chunked"
            if not chunked or old or (repeats and twice(b"transfer-encoding", headers)):
                raise problems.CodingUnsupported
        elif b"content-length" in names:
            self._body_left = int(names[b"content-length"])  # the parser has seen to it that it is one number
        if not old and (b"host" not in names or (repeats and twice(b"host", headers))):
            raise Malformed("A request needs one Host header.")
        path, _, query = url.partition(b"?")
        if path[:1] != b"/":
            path = origin_form(path)
        head = RequestHead(headers, names)
        exchange = Exchange(self, RequestTarget(parser.get_method().decode(), path, head), query)
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
        self._overhead = 0
        if self._body_left:
            self._body_left -= len(chunk)
        if self._reading is not None and self._reading.feed(chunk):
            self._stop_reading()

    def on_message_complete(self) -> None:
        self._between = True
        self._overhead = 0
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
            self._read_on()

    def answered(self, exchange: Exchange) -> None:
        """The answer is out: go on with the next request, or close."""
        if exchange is not self._answering:
            return
        self._answering = None
        self.unused = False
        self.since = self.house.now
        if not exchange.keep_alive or self.house.stopping:
            self._close(complete=exchange.complete)
        elif self._queue or self._refused is not None:
            self._next()
        elif not self._reads:
            self.go_on_reading()

    def close_if_idle(self, *, awaits_request: bool = False) -> None:
        """Close unless a request is under way, or may be so: it has begun to arrive, or the connection is new."""
        if awaits_request and (self.unused or not self._between):
            return
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
                self._refuse(problems.HeadTimeout())
        elif lasted > IDLE_SECONDS:
            self._transport.close()

    def _parse(self, data: bytes) -> None:
        """Feed the parser as much as one turn of the loop may cost; keep the rest for the next."""
        fresh, size = self._between, len(data)
        if size <= STEP_BYTES and data.count(HEAD_END) < 2:
            self._feed(data)
            parsed = size
        else:
            parsed = self._feed_pieces(data)
        if self._plain is not None and self._between:
            plain, self._plain = self._plain, None
            if fresh and parsed == size and self._chances:
                self._remember(data, plain.target.head)
        if self._unserved is not None:
            self._serve_parsed()
        if parsed < size and not self._ending():
            self._unparsed = data[parsed:]
            self._transport.pause_reading()
            self._read_on()

    def _feed_pieces(self, data: bytes) -> int:
        """Feed the parser piece by piece, each with one request at most; give how much of it that was."""
        at, size, budget = 0, len(data), STEP_BYTES
        while at < size and budget > 0 and self._reads and not self._ending():
            if self._body_left:
                ends = min(at + self._body_left, size)
            else:
                found = data.find(HEAD_END, at, at + budget)
                ends = min(at + budget, size) if found < 0 else found + 4
                budget -= ends - at
            self._feed(data[at:ends])
            at = ends
            if self._between and self._unserved is not None:
                budget -= REQUEST_BYTES
                self._serve_parsed()
        return at

    def _feed(self, piece: bytes) -> None:
        """Feed the parser; what it does not understand is refused."""
        self._overhead += len(piece)
        # The parser takes more than one space between the parts of a request's first line; others may read that differently.
        if self._between and b"  " in piece and b"  " in piece.lstrip(b"\r\n").partition(b"\r\n")[0]:
            self._refuse(Malformed("The parts of a request's first line have one space between them."))
            return
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._no_upgrade()
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
        """Serve a request that was parsed; not from within the parser, since an answer may be out at once, and close us."""
        exchange, self._unserved = self._unserved, None
        self.house.serve(cast("Exchange", exchange))

    def _ending(self) -> bool:
        """Tell whether nothing that comes now is a request any more."""
        return self._lingering or self._refused is not None or self._transport.is_closing()

    def _remember(self, data: bytes, head: RequestHead) -> None:
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
            target = RequestTarget(method, path, head)
        if len(data) <= MOST_ASKED:
            self._target = target
            if query and not head.length:
                at = line.start(3)
                self._asked = (data[:at], data[at + len(query) :], target)
        self._take_known(target, query, data[ends:])
        return True

    def _take_known(self, target: RequestTarget, query: bytes, body: bytes) -> None:
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
            self._refused = None
            self._lingering = True
            if reading.started:
                self.abort()  # half of its answer is out already
            else:
                reading.fail(error)  # its own answer says so
        elif self._answering is None and not self._queue:
            self._say_refused(error)

    def _say_refused(self, error: HeadgateError) -> None:
        status, rest = last_problem(error)
        self.write(self.heads.dated(status) + rest)
        self._close(complete=False)

    def _close(self, *, complete: bool) -> None:
        """Close once all is sent. Of a request that still arrives the rest is read first: its reset would take the answer along."""
        self.flush()
        self._queue.clear()
        self._unparsed = b""
        if complete:
            self._transport.close()
            return
        self._lingering = True
        self.since = self.house.now
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._reads = True
        self._transport.resume_reading()

    def _read_on(self) -> None:
        if self._reads and not self._transport.is_closing():
            if self._unparsed:
                self.house.parse_later(self)
            else:
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
