"""A client of the SDK acts for many people, so what an upstream tells one of them is never sent for another."""

from __future__ import annotations

from secrets import token_hex

import msgspec

from headgate.relay.model import Limit, Upstream
from headgate.sdk import Headgate
from tests.http.echo import Echo
from tests.processes import Gateway


async def test_a_cookie_of_an_upstream_is_sent_for_nobody_else(gateway: Gateway) -> None:
    async with Echo().open() as echo, Headgate(gateway.url, token=gateway.token) as hg:
        echo.words["login"] = (
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nSet-Cookie: session=anns; Path=/\r\nConnection: close\r\n\r\n"
        )
        name = f"up-{token_hex(4)}"
        await hg.relay.put_upstream(name, Upstream(base_url=echo.url, limits=(Limit(count=9, seconds=1),)))
        login = await hg.relay.request("GET", name, "/say/login", user="ann")
        assert ("set-cookie", "session=anns; Path=/") in login.headers, "the caller is told"
        for user in ("ann", "ben"):
            told = msgspec.json.decode((await hg.relay.request("GET", name, "/x", user=user)).content)
            assert "cookie" not in {header.lower() for header, _ in told["headers"]}
        own = await hg.relay.request("GET", name, "/x", user="ben", headers={"Cookie": "session=bens"})
        assert ["cookie", "session=bens"] in msgspec.json.decode(own.content)["headers"]
