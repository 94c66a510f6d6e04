"""Origins of pages: scheme, host and port, and nothing that only looks like one."""

from __future__ import annotations

import pytest

from headgate.gateway.console import _from_our_page
from headgate.gateway.cors import CorsOrigins
from headgate.http.origins import origin_of
from headgate.kit.settings import SettingInvalid


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("https://shop.example", "https://shop.example"),
        ("https://Shop.Example:443/", "https://shop.example"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
    ],
)
def test_an_origin_is_written_as_browsers_do(text: str, written: str) -> None:
    assert origin_of(text) == written


@pytest.mark.parametrize(
    "text",
    ["", "null", "*", "//host", "host", "host:80", "ftp://host", "http://", "http://host:80.evil.example", "http://host:",
     "http://user@host", "http://host/path", "http://host?q", "http://host#f", "http://host?", "http://[", "http://ho st",
     "http://host\n", "http://host:99999", "javascript:alert(1)"],
)  # fmt: skip
def test_these_are_no_origins(text: str) -> None:
    assert origin_of(text) is None


@pytest.mark.parametrize("text", ["shop.example", "https://shop.example/page", "null"])
def test_a_setting_that_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(SettingInvalid, match="not an origin"):
        CorsOrigins([text])


@pytest.mark.parametrize(
    ("origin", "proto", "ours"),
    [
        (b"https://gate.example", None, True),
        (b"http://gate.example", None, True),
        (b"http://gate.example", b"https", False),
        (b"ftp://gate.example", None, False),
        (b"//gate.example", None, False),
        (b"https://gate.example:8443", None, False),
    ],
)
def test_the_console_knows_its_own_page_by_scheme_host_and_port(origin: bytes, proto: bytes | None, ours: bool) -> None:
    headers = {b"x-headgate-console": b"1", b"host": b"gate.example", b"origin": origin}
    if proto is not None:
        headers[b"x-forwarded-proto"] = proto
    assert _from_our_page(headers) is ours
