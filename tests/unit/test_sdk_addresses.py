"""A client that is given a URL or a token that cannot be used says so: one sentence, and never the secret itself."""

from __future__ import annotations

import asyncio
import socket
import traceback

import pytest

from headgate.arena.client import enter
from headgate.arena.problems import NotAnArena
from headgate.cli.app import run
from headgate.kit.problems import HeadgateError, InvalidRequest, StoreRefused
from headgate.sdk import Headgate, HeadgateSync, ServiceDiscoveryClient
from headgate.sdk.gate import Gate
from headgate.sdk.http import GatewayUnavailable, Http, NotText
from headgate.store.client.address import parse_address
from headgate.store.client.link import ServerError
from headgate.store.errors import as_problem
from tests.topology import free_port

SECRET = "hg_0123456789abcdefghijklmnop"
URLS = ("http://[::1", "http://127.0.0.1:99999", "http://", "http:///x", "http://h:x", "https://a b", "http://\x00", "",
        "ftp://host", "valkey://[::1", "valkey://127.0.0.1:99999/0", "valkey://h/x", "valkey://h/-1", "valkey://:pa/sw@h/0",
        "valkey://", "httpx://host", "http://한글:1:2")  # fmt: skip
TOKENS = ("한글" + SECRET, SECRET + "\nX-Admin: yes", SECRET + "\x00", SECRET + "\x7f", SECRET + "é")


@pytest.mark.parametrize("url", URLS)
def test_a_url_that_cannot_be_used_is_refused_when_a_client_is_made(url: str) -> None:
    for make in (Headgate, HeadgateSync, lambda url: ServiceDiscoveryClient("http", base_url=url)):
        with pytest.raises(InvalidRequest) as refused:
            make(url)
        assert "pa" not in refused.value.detail.split("password")[0].split()


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_that_no_header_can_carry_is_refused_without_repeating_it(token: str) -> None:
    async def site(*_: object) -> None: ...

    for make in (
        lambda: Headgate("http://127.0.0.1:1", token=token),
        lambda: HeadgateSync("http://127.0.0.1:1", token=token),
        lambda: ServiceDiscoveryClient("http", base_url="http://127.0.0.1:1", api_token=token),
        lambda: Gate(site, "http://127.0.0.1:1", token=token),
        lambda: Http("http://127.0.0.1:1", token),
        lambda: asyncio.run(enter("ws://127.0.0.1:1/x", token).__aenter__()),
    ):
        with pytest.raises(InvalidRequest) as refused:
            make()
        assert SECRET not in "".join(traceback.format_exception(refused.value))


async def ask(url: str, token: str = "", **headers: str) -> HeadgateError:
    async with Http(url, token) as http:
        with pytest.raises(HeadgateError) as refused:
            await http.send("GET", "/", headers=headers)
    return refused.value


def test_the_newline_at_the_end_of_a_file_is_no_part_of_a_token_or_url() -> None:
    client = Headgate(f"http://127.0.0.1:{free_port()}\n", token=f" {SECRET}\r\n")
    assert client.token == SECRET
    assert client.url.isprintable()
    assert isinstance(asyncio.run(ask(client.url + "\n", SECRET + "\n")), GatewayUnavailable)


def test_messages_repeat_neither_headers_nor_passwords() -> None:
    url = f"http://me:{SECRET}@127.0.0.1:{free_port()}"
    away = asyncio.run(ask(url))
    assert isinstance(away, GatewayUnavailable)
    assert SECRET not in str(away)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        at = f"http://127.0.0.1:{listening.getsockname()[1]}"
        error = asyncio.run(ask(at, **{"X-Place-Token": SECRET + "\n"}))
    assert isinstance(error, NotText)
    assert SECRET not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("url", URLS[:8])
def test_commands_say_what_is_wrong_with_a_url(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["queue", "list", "--url", url or "x"]) == 1
    assert "should not have" not in capsys.readouterr().err
    monkeypatch.setenv("HEADGATE_TOKEN", TOKENS[0])
    assert run(["queue", "list", "--url", "http://127.0.0.1:1"]) == 1
    said = capsys.readouterr().err
    assert "header cannot carry" in said
    assert SECRET not in said


@pytest.mark.parametrize("address", ["ws://[::1", "ws://h:99999/x", "http://h/x"])
def test_an_address_that_is_no_arena_s_is_called_that(address: str) -> None:
    with pytest.raises(NotAnArena):
        asyncio.run(enter(address, SECRET).__aenter__())


def test_a_database_that_the_store_does_not_have_is_no_defect() -> None:
    error = as_problem(ServerError("ERR DB index is out of range"))
    assert isinstance(error, StoreRefused)
    assert "database" in error.detail


def test_parts_of_a_password_are_in_no_message() -> None:
    for url in ("valkey://:pa/sw@h/0", "valkey://:p℀w@h/0", "valkey://:pa#sw@h/0"):
        with pytest.raises(InvalidRequest) as refused:
            parse_address(url)
        assert not {"':pa'", "p℀w", ":pa"} & set(refused.value.detail.split())
