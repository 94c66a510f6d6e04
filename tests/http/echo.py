"""An upstream that tells what it got, and says on some paths what no proper one would."""

from __future__ import annotations

import asyncio
import json

import h11

from tests.topology import HOST


class Echo:
    """An upstream that tells what it got, and misbehaves on some paths."""

    def __init__(self) -> None:
        self.requests = 0
        self.whole = 0
        self.port = 0
        self.paths: list[str] = []
        self.words: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def open(self) -> _Open:
        return _Open(self)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER)
        try:
            while await self._one(http, reader, writer):
                http.start_next_cycle()
        except (OSError, h11.RemoteProtocolError, asyncio.CancelledError):
            pass  # the test is over
        finally:
            writer.close()

    async def _one(self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        received, path, headers = 0, "", []
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Request):
                self.requests += 1
                path = event.target.decode()
                self.paths.append(path)
                headers = [(name.decode(), value.decode()) for name, value in event.headers]
            elif isinstance(event, h11.Data):
                received += len(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self.whole += 1
                break
            else:
                return False
        if path.endswith("/cut"):
            return False
        if path.endswith("/hang"):
            await asyncio.sleep(3)
            return False
        if path.endswith("/junk"):
            writer.write(b"this is not HTTP\r\n\r\n")
            return False
        if path.startswith("/say/"):
            writer.write(self.words[path.removeprefix("/say/")])
            if path.endswith("-open"):
                await reader.read(1)
            return False
        status, content, more = 200, b"", []
        if path.endswith("/redirect"):
            status, more = 302, [("Location", "http://169.254.169.254/latest")]
        elif "bytes=" in path:
            content = b"x" * int(path.split("bytes=")[1])
        else:
            content = json.dumps({"received": received, "headers": headers, "path": path}).encode()
        all_headers = [("Content-Length", str(len(content))), ("Keep-Alive", "timeout=5"), *more]
        writer.write(http.send(h11.Response(status_code=status, headers=all_headers)) or b"")
        if content:
            writer.write(http.send(h11.Data(data=content)) or b"")
        writer.write(http.send(h11.EndOfMessage()) or b"")
        await writer.drain()
        return http.our_state is h11.DONE and http.their_state is h11.DONE


class _Open:
    def __init__(self, echo: Echo) -> None:
        self._echo = echo
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Echo:
        self._server = await asyncio.start_server(self._echo.serve, HOST, 0)
        self._echo.port = self._server.sockets[0].getsockname()[1]
        return self._echo

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
