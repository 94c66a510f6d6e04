"""A gateway with routes made for tests: every kind of query, body, answer, stream and wait."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated

import msgspec

from headgate.gateway.assembly import open_gateway
from headgate.gateway.gateway import Gateway
from headgate.gateway.settings import GatewaySettings
from headgate.http.routes import (
    EVENTS,
    Access,
    Answer,
    Call,
    Handler,
    Mount,
    Operation,
    Receive,
    Scope,
    Send,
    Stream,
    event,
)
from headgate.http.server import serve
from headgate.kit import logs
from headgate.kit.ids import display_text, thing_name
from headgate.kit.problems import HeadgateError
from headgate.kit.wire import Wire
from headgate.store import Store, StoreSettings, open_store, script


class CupboardBare(HeadgateError):
    """There is nothing in the cupboard."""

    code, status = "cupboard_bare", 409


class Search(Wire):
    """A query with one of each."""

    name: str
    count: int = 1
    share: float = 0.5
    deep: bool = False
    tag: list[str] = []


class Found(Wire):
    """The query of a search, as it arrived."""

    name: str
    count: int
    share: float
    deep: bool
    tag: list[str]
    namespace: str
    caller: str
    client: str
    pid: int


class Inner(Wire):
    """A struct inside a struct."""

    weight: Annotated[int, msgspec.Meta(ge=0, le=100)] = 1


class Note(Wire):
    """A body with one of each."""

    title: str
    lines: list[str] = []
    inner: Inner = Inner()
    extra: dict[str, object] = {}


class Echo(Wire):
    """A body, as it arrived."""

    note: Note | None
    bytes: int = 0


async def search(call: Call) -> Found:
    query: Search = call.query
    fields = {name: getattr(query, name) for name in Search.__struct_fields__}
    return Found(**fields, namespace=call.namespace, caller=call.caller.name, client=call.client, pid=os.getpid())


async def keep_note(call: Call) -> Answer:
    note: Note = call.body
    display_text(note.title, "title")
    return Answer(Echo(note), 201, {"etag": '"1"'})


async def maybe_note(call: Call) -> Echo:
    return Echo(call.body)


async def raw_bytes(call: Call) -> Echo:
    return Echo(None, len(call.body))


async def thing(call: Call) -> Found:
    name = thing_name(call.path["name"])
    return Found(name, 0, 0, False, [], call.namespace, call.caller.name, call.client, os.getpid())


async def nothing(call: Call) -> None:
    """Answer with 204."""


async def broken(call: Call) -> None:
    raise ZeroDivisionError("a secret in the message")


async def bare(call: Call) -> None:
    raise CupboardBare("Nothing here.", retry_after=2.2, shelf="upper")


async def unencodable(call: Call) -> object:
    return object()


async def split_header(call: Call) -> Answer:
    return Answer("a", headers={"location": "/a\r\nSet-Cookie: b=c"})


async def paused(call: Call) -> Answer:
    """Await all there is to await, and tell whether a task was made for it."""
    await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    await asyncio.wait((asyncio.ensure_future(asyncio.sleep(0.01)),))
    return Answer({"task": asyncio.current_task() is not None})


async def cut_off(call: Call) -> None:
    """Await something that is cancelled, as what waits for the store is when a process ends."""
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.cancel)
    await future


def plain(call: Call) -> Answer:
    """Answer at once."""
    return Answer({"task": asyncio.current_task() is not None})


async def wait(call: Call) -> Answer:
    """Wait until the client leaves or the gateway stops."""
    await call.until_disconnect(asyncio.sleep(600))
    return Answer("never", content_type="text/plain")


async def count(call: Call) -> Stream:
    """Send two events, and then nothing for a long time."""

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield event("count", {"number": 1}, 1)
            yield event("count", {"number": 2}, 2)
            if call.query.count == 0:
                raise CupboardBare
            if call.query.count > 2:
                await asyncio.sleep(600)
        finally:
            _ended.append(call.query.name)

    return Stream(chunks())


async def flood(call: Call) -> Stream:
    """Send for ever, as fast as the client reads."""

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65_536

    return Stream(chunks(), "application/octet-stream")


_ended: list[str] = []


async def ended(call: Call) -> Answer:
    """Tell which streams were closed in this process."""
    return Answer(_ended)


async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
    """A plain ASGI application: it says who called, or fails on request."""
    if scope["path"].endswith("/bare"):
        raise CupboardBare
    call: Call = scope["headgate"]
    body = f"{call.caller.name} {scope['path']}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


def operations(store: Store) -> list[Operation]:
    """Give the routes of the sample."""
    stored = store.thing("token", "default", "tokens")

    async def ask_store(call: Call) -> Answer:
        await store.run(script("headgate.gateway", "token_list"), stored, "")
        return Answer({"answered": True})

    def public(method: str, path: str, handler: Handler) -> Operation:
        return Operation(method, path, handler, path, access=Access.PUBLIC, tag="sample")

    def with_role(role: Access, path: str) -> Operation:
        return Operation("GET", path, thing, path, access=role, tag="sample", answer=Found, namespaced=True)

    return [
        replace(public("GET", "/sample/search", search), query=Search, answer=Found, namespaced=True),
        replace(public("POST", "/sample/notes", keep_note), body=Note, answer=Echo, status=201, errors=(CupboardBare,)),
        replace(public("PUT", "/sample/maybe", maybe_note), body=Note, body_optional=True, answer=Echo),
        replace(public("PUT", "/sample/raw", raw_bytes), body=bytes, body_limit=1000, answer=Echo),
        replace(public("GET", "/sample/things/{name}", thing), answer=Found, namespaced=True),
        replace(public("GET", "/sample/limited", nothing), limit="tight", name="limited"),
        replace(
            public("GET", "/sample/limited-user", nothing),
            query=Search,
            limit="tight",
            user=lambda call: str(call.query.name),
            name="limited_user",
        ),
        public("DELETE", "/sample/nothing", nothing),
        replace(public("GET", "/sample/store", ask_store), answer=dict[str, bool]),
        replace(public("GET", "/sample/prompt/store", ask_store), prompt=True, name="prompt_store", documented=False),
        *(
            replace(
                public("GET", f"/sample/prompt/{name}", handler), prompt=True, name=f"prompt_{name}", documented=False
            )
            for name, handler in {"broken": broken, "unencodable": unencodable, "split-header": split_header}.items()
        ),
        replace(public("GET", "/sample/prompt/paused", paused), prompt=True, documented=False),
        replace(public("GET", "/sample/prompt/cut-off", cut_off), prompt=True, documented=False),
        replace(public("GET", "/sample/plain", plain), documented=False),
        replace(public("GET", "/sample/broken", broken), documented=False),
        replace(public("GET", "/sample/unencodable", unencodable), documented=False),
        replace(public("GET", "/sample/split-header", split_header), documented=False),
        replace(public("GET", "/sample/bare", bare), errors=(CupboardBare,), documented=False),
        replace(public("GET", "/sample/wait", wait), documented=False),
        replace(public("GET", "/sample/count", count), query=Search, content_type=EVENTS, documented=False),
        replace(public("GET", "/sample/flood", flood), documented=False),
        replace(public("GET", "/sample/ended", ended), documented=False),
        replace(with_role(Access.READ, "/sample/read/{name}"), name="read_thing"),
        replace(with_role(Access.SERVICE, "/sample/service/{name}"), name="service_thing"),
        replace(with_role(Access.ADMIN, "/sample/{namespace}/admin/{name}"), name="admin_thing"),
    ]


@asynccontextmanager
async def open_sample(store: StoreSettings, settings: GatewaySettings, level: logs.Level) -> AsyncIterator[Gateway]:
    """Open the sample in a worker."""
    logs.configure(logs.LogSettings(level=level, format=logs.Format.JSON), "sample")
    mounts = [Mount("/sample/mounted", mounted, Access.SERVICE, bearer=False)]
    async with open_store(store) as opened:
        async with open_gateway(
            operations(opened), mounts, settings=settings, store=opened, secrets=[b"of the sample"]
        ) as gateway:
            yield gateway


def main() -> None:
    """Serve the sample; the settings come as JSON, the two ports go out as one line."""
    store = msgspec.json.decode(sys.argv[1], type=StoreSettings)
    settings = msgspec.json.decode(sys.argv[2], type=GatewaySettings)
    logs.configure(logs.LogSettings(format=logs.Format.JSON), "sample parent")
    factory = partial(open_sample, store, settings, logs.Level(sys.argv[3]))
    try:
        asyncio.run(serve(factory, settings, started=lambda *ports: print(*ports, flush=True)))
    except HeadgateError as error:
        sys.exit(error.detail)


if __name__ == "__main__":
    # The factory must be found by the workers under the name of its module.
    from tests.http import sample

    sample.main()
