"""The visitor's cookie: only ours is believed, whatever was done to it."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from headgate.gate.passes import (
    LONGEST,
    MOST_COOKIES,
    MOST_PASSES,
    Pass,
    PassKeys,
    Visitor,
    read_cookies,
    set_cookie,
)

KEYS = PassKeys([("a", b"secret-a"), ("b", b"secret-b")])
VISITOR = Visitor("u1", 2000, (Pass("default/main", 1, 900, 1200),))


def test_a_sealed_visitor_opens_again() -> None:
    assert KEYS.open(KEYS.seal(VISITOR), 1000) == VISITOR


def test_a_cookie_signed_with_an_older_key_still_opens_and_one_with_a_foreign_key_does_not() -> None:
    older = PassKeys([("b", b"secret-b")]).seal(VISITOR)
    foreign = PassKeys([("a", b"another")]).seal(VISITOR)
    unknown = PassKeys([("c", b"secret-a")]).seal(VISITOR)
    assert KEYS.open(older, 1000) == VISITOR
    assert KEYS.open(foreign, 1000) is None
    assert KEYS.open(unknown, 1000) is None


@given(st.data())
def test_no_changed_byte_goes_unnoticed(data: st.DataObject) -> None:
    sealed = KEYS.seal(VISITOR)
    at = data.draw(st.integers(0, len(sealed) - 1))
    sign = data.draw(st.characters(min_codepoint=32, max_codepoint=126).filter(lambda sign: sign != sealed[at]))
    assert KEYS.open(sealed[:at] + sign + sealed[at + 1 :], 1000) is None


@given(st.text(max_size=200))
def test_rubbish_is_no_visitor(value: str) -> None:
    assert KEYS.open(value, 1000) is None


def test_padding_and_other_spellings_are_refused() -> None:
    sealed = KEYS.seal(VISITOR)
    kid, payload, mac = sealed.split(".")
    padded = base64.urlsafe_b64encode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))).decode()
    assert KEYS.open(f"{kid}.{payload}.{mac}=", 1000) is None
    assert padded == payload or KEYS.open(f"{kid}.{padded}.{mac}", 1000) is None


def test_a_pass_past_its_end_is_left_out_and_so_is_a_visitor() -> None:
    opened = KEYS.open(KEYS.seal(VISITOR), 1200)
    assert opened is not None
    assert opened.pass_for("default/main") is None
    assert KEYS.open(KEYS.seal(VISITOR), 2000) is None


def test_a_pass_is_renewable_in_its_last_third_only() -> None:
    held = VISITOR.passes[0]
    assert not held.renewable(1099)
    assert held.renewable(1100)


def test_the_newest_passes_are_kept() -> None:
    visitor = Visitor("u1", 2000)
    for number in range(MOST_PASSES + 3):
        visitor = visitor.with_pass(Pass(f"default/q{number}", 1, 900, 1200))
    assert len(visitor.passes) == MOST_PASSES
    assert visitor.passes[0].queue == f"default/q{MOST_PASSES + 2}"
    assert len(KEYS.seal(visitor)) < 3000


def test_passes_with_the_longest_names_are_kept_as_far_as_a_cookie_can_hold_them() -> None:
    visitor = Visitor("u1", 2000)
    for number in range(MOST_PASSES):
        visitor = visitor.with_pass(Pass(f"{'n' * 128}/{'q' * 127}{number}", 2**53, 10**10, 10**10 + 1))
    sealed = KEYS.seal(visitor)
    opened = KEYS.open(sealed, 1000)
    assert len(sealed) <= LONGEST
    assert opened is not None
    assert 3 < len(opened.passes) < MOST_PASSES
    assert opened.passes == visitor.passes[: len(opened.passes)]


def test_all_cookies_of_the_name_are_read_up_to_a_bound() -> None:
    assert read_cookies(b"headgate=a; x=y;headgate=b", secure=False) == ("a", "b")
    assert len(read_cookies(b"headgate=a; " * 100, secure=False)) == MOST_COOKIES


def test_on_https_the_cookie_is_bound_to_the_host_and_a_plain_one_is_not_read() -> None:
    header = set_cookie("v", secure=True)
    assert header.startswith("__Host-headgate=v; Path=/;")
    assert "Secure" in header
    assert "HttpOnly" in header
    assert "SameSite=Lax" in header
    assert "Secure" not in set_cookie("v", secure=False)
    assert read_cookies(b"headgate=evil; __Host-headgate=good", secure=True) == ("good",)
    assert read_cookies(b"headgate=evil", secure=True) == ()
    assert read_cookies(b"a=b; headgate=v", secure=False) == ("v",)
