"""Path rules: what is guarded cannot be dodged by spelling, what bypasses must be spelt plainly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.kit.problems import InvalidRequest
from headgate.waiting_room.paths import PathRules, check_glob, literal_path, plain_path, read_networks, within

GUARDED = PathRules(["/product/*", "/sale/**"])
OPEN = PathRules(["/assets/**", "/health"], literal=True)


@pytest.mark.parametrize(
    "target",
    [
        "/product/7", "/PRODUCT/7", "//product//7", "/product/7?x=1", "/%70roduct/7", "/%2570roduct/7", "/a/../product/7",
        "/./product/7/", "/product;v=1/7", "\\product\\7", "http://shop/product/7", "/sale/a/b/c", "/product/7#top",
        "/sale", "/sale/", "/" + "./" * 5000 + "product/7", "/" + "a/../" * 2000 + "sale/x", "http://shop/sale?x",
    ],
)  # fmt: skip
def test_a_guarded_path_is_guarded_however_it_is_spelt(target: str) -> None:
    assert GUARDED.match(target)


@pytest.mark.parametrize(
    "target",
    [
        "/sale/../about", "/sale/..%2fabout", "/sale/%2e%2e/about", "/sale/%252e%252e/about", "/sale/..;/about",
        "/sale/x/..\\..\\about", "/sale/x/..%5c..%5cabout", "/sale/%25252e%25252e/about",
    ],
)  # fmt: skip
def test_a_path_that_one_server_reads_as_guarded_is_guarded(target: str) -> None:
    assert GUARDED.match(target)


@pytest.mark.parametrize(
    "target", ["/", "/products/7", "/product/7/reviews", "/other", "/sales", "/a?/sale/x", "*", "http://shop", ""]
)
def test_other_paths_are_not_guarded(target: str) -> None:
    assert not GUARDED.match(target)


@pytest.mark.parametrize(
    "target",
    [
        "/assets/../product/7",
        "/assets/%2e%2e/product/7",
        "/assets//x",
        "/ASSETS/x",
        "/assets\\..\\x",
        "/health%00",
        "/a",
    ],
)
def test_what_hides_something_bypasses_nothing(target: str) -> None:
    assert not OPEN.match(target)


def test_a_plain_path_bypasses() -> None:
    assert OPEN.match("/assets/app.css?v=3")
    assert OPEN.match("/health/")


@given(st.text(max_size=60))
def test_plain_form_is_reached_once_and_for_all(text: str) -> None:
    plain = plain_path("/" + text)
    assert plain.startswith("/")
    assert "//" not in plain
    assert ".." not in plain.split("/")


@given(st.text(max_size=60))
def test_a_literal_path_is_in_plain_form(text: str) -> None:
    literal = literal_path("/" + text)
    assert literal is None or plain_path(literal) == literal.casefold()


def test_addresses() -> None:
    networks = read_networks(["10.0.0.0/8", "2001:db8::/32"])
    assert within("10.1.2.3", networks)
    assert within("::ffff:10.1.2.3", networks)
    assert within("2001:db8::1", networks)
    assert not within("11.0.0.1", networks)
    assert not within("somewhere", networks)
    with pytest.raises(InvalidRequest):
        read_networks(["10.0.0.1/8"])
    with pytest.raises(InvalidRequest):
        check_glob("product/*")
