"""Path rules: what is guarded cannot be dodged by spelling, what bypasses must be spelt plainly, and neither costs much."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.gate.paths import LONGEST_PATH, MOST_CHARACTERS, interpretations, literal_path
from headgate.http.networks import read_networks, within
from headgate.http.path_rules import (
    MOST_GLOBS,
    MOST_STARS,
    Glob,
    PathRules,
    Subject,
    check_glob,
    check_globs,
    normal_form,
)
from headgate.kit.problems import InvalidRequest
from headgate.waiting_room.policy import Bypass, Policy
from tests.steps import count_steps

GUARDED = PathRules(["/product/*", "/sale/**", "/상품/**"])
OPEN = PathRules(["/assets/**", "/health", "/열린/**"], literal=True)
STARS = re.compile(r"(/\*\*\Z|\*\*|\*)")


def guarded(target: str | bytes) -> bool:
    """Tell whether rules match a path, or whether it cannot be read."""
    read = interpretations(target if isinstance(target, bytes) else target.encode())
    return not read.complete or GUARDED.match(read.paths)


def bypasses(target: str | bytes) -> bool:
    literal = literal_path(target if isinstance(target, bytes) else target.encode())
    return literal is not None and OPEN.match((literal,))


@pytest.mark.parametrize(
    "target",
    [
        "/product/7", "/PRODUCT/7", "//product//7", "/product/7?x=1", "/%70roduct/7", "/%2570roduct/7", "/a/../product/7",
        "/./product/7/", "/product;v=1/7", "\\product\\7", "http://shop/product/7", "/sale/a/b/c", "/product/7#top",
        "/sale", "/sale/", "/" + "./" * 5000 + "product/7", "/" + "a/../" * 2000 + "sale/x", "http://shop/sale?x",
        "/" + "./" * 900 + "product/7", "/상품/7", quote("/상품/7"), quote(quote("/상품/7")), "/상%ED%92%88/7",
        unicodedata.normalize("NFD", "/상품/7"), quote(unicodedata.normalize("NFD", "/상품/7")),
    ],
)  # fmt: skip
def test_a_guarded_path_is_guarded_however_it_is_spelt(target: str) -> None:
    assert guarded(target)


@pytest.mark.parametrize(
    "target",
    [
        "/sale/../about", "/sale/..%2fabout", "/sale/%2e%2e/about", "/sale/%252e%252e/about", "/sale/..;/about",
        "/sale/x/..\\..\\about", "/sale/x/..%5c..%5cabout", "/sale/%25252e%25252e/about",
    ],
)  # fmt: skip
def test_a_path_that_one_server_reads_as_guarded_is_guarded(target: str) -> None:
    assert guarded(target)


@pytest.mark.parametrize(
    "target",
    [
        b"/sa\xffle/x", b"/%ffsale", "/상품/7".encode("euc-kr"), quote("/상품/7".encode("euc-kr")).encode(), b"/%c0%afsale",
        b"/about%00", b"/%2525252525252573ale", b"/" + b"a" * LONGEST_PATH, b"/a#/../sale", b"\xed\xa0\x80",
    ],
)  # fmt: skip
def test_a_path_that_cannot_be_read_is_guarded_and_bypasses_nothing(target: bytes) -> None:
    assert guarded(target)
    assert not bypasses(target)
    assert not bypasses(b"/assets/" + target)


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/products/7",
        "/product/7/reviews",
        "/other",
        "/sales",
        "/a?/sale/x",
        "*",
        "http://shop",
        "",
        "/상/품",
        "/🎫/7",
    ],
)
def test_other_paths_are_not_guarded(target: str) -> None:
    assert not guarded(target)
    assert not guarded(quote(target))


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
        "/%61ssets/x",
        quote(quote("/열린/x")),
        unicodedata.normalize("NFD", "/열린/x"),
    ],
)
def test_what_hides_something_bypasses_nothing(target: str) -> None:
    assert not bypasses(target)


def test_a_plain_path_bypasses() -> None:
    for target in ("/assets/app.css?v=3", "/health/", "/열린/x", quote("/열린/x"), quote("/열린/x").lower()):
        assert bypasses(target), target


def test_a_rule_may_be_written_as_a_browser_shows_or_sends_it() -> None:
    for rule in ("/상품/**", quote("/상품/") + "**", unicodedata.normalize("NFD", "/상품/**")):
        assert PathRules([rule]).match(interpretations(quote("/상품/7").encode()).paths), rule


@given(st.binary(max_size=60))
def test_plain_form_is_reached_once_and_for_all(raw: bytes) -> None:
    paths, _ = interpretations(b"/" + raw)
    assert paths[0].startswith("/")
    assert "//" not in paths[0]
    assert ".." not in paths[0].split("/")
    for path in paths:
        assert path == normal_form(path)


@given(st.text(max_size=60))
def test_a_literal_path_is_in_plain_form(text: str) -> None:
    literal = literal_path(("/" + text).encode(errors="ignore"))
    assert literal is None or interpretations(literal.encode()).paths[0] == normal_form(literal)


def expression(glob: str) -> re.Pattern[str]:
    """Write a rule as a regular expression, which may take for ever on a long path: the model for short ones."""
    signs = {"/**": "(?:/(.*))?", "**": "(.*)", "*": "([^/]*)"}
    return re.compile(
        "".join(signs.get(part, re.escape(part)) for part in STARS.split(glob.rstrip("/") or "/")), re.DOTALL
    )


@given(
    st.lists(st.sampled_from(["a", "b", "ab", "사", "/", "*", "**", "/**"]), max_size=7).map(
        lambda parts: "/" + "".join(parts)
    ),
    st.lists(st.sampled_from("ab사/"), max_size=10).map(lambda signs: "/" + "".join(signs)),
)
@example("/**/a/**/b/**", "/a/a/b")
@example("/a*a*a", "/aaaa")
@example("/a**", "/a")
@example("/**", "/")
def test_rules_match_and_capture_as_the_same_expression_does(glob: str, path: str) -> None:
    found = (pattern := expression(glob)).fullmatch(path)
    expected = None if not found else found[1] or "" if pattern.groups else ""
    assert Glob(glob, literal=True).capture(Subject(path)) == expected


@given(
    st.lists(st.sampled_from("ab사🎫/"), max_size=120).map("".join),
    st.lists(st.sampled_from("ab사🎫/"), min_size=1, max_size=4).map("".join),
)
@example("a" * 100, "aaa")
@example("ab" * 100, "aba")
@example("", "a")
def test_places_of_a_text_are_found_however_many_there_are(path: str, text: str) -> None:
    raw, wanted = path.encode(), text.encode()
    bits = sum(1 << (len(raw) - len(wanted) - at) for at in range(len(raw)) if raw.startswith(wanted, at))
    assert Subject(path).positions(wanted) == bits


@pytest.mark.parametrize(
    ("glob", "sign"),
    [
        ("/**/a/**/b/**", "/a"),
        ("/" + "**a" * MOST_STARS + "b", "a"),
        ("/" + "*a" * MOST_STARS + "b", "a"),
        ("/*/*/*/x", "/"),
    ],
)
def test_matching_takes_steps_in_proportion_to_the_length_of_the_path(glob: str, sign: str) -> None:
    rule = Glob(glob, literal=False)

    def steps(length: int) -> int:
        path = "/" + sign * (length // len(sign))
        return count_steps(lambda: rule.capture(Subject(path)))

    assert steps(4000) < 2.5 * steps(2000) + 100
    assert steps(4000) < 40 * 4000


WORDS = ("buy", "checkout", "cart", "order", "pay", "seat", "ticket", "event", "show", "drop")


@pytest.mark.parametrize(
    ("rules", "path"),
    [
        # Slashes without end, which no rule means.
        ([f"/**/{word}{number}*/**" for word in WORDS for number in range(10)], "/" + "x/" * 1000),
        # All texts of the rules are there, but not in their order.
        ([f"/shop/*/{word}{number}*/z" for word in WORDS for number in range(10)],
         "/shop/z" + "".join(f"/{word}{number}" for word in WORDS for number in range(10)) * 2),
        (["/**a*b*a*b" + "ab" * number + "*/**x" for number in range(100)], "/x" + "ab" * 1000),
        (["/" + "*/" * (MOST_STARS - 1) + f"a{number}" for number in range(100)], "/" + "a1/" * 600),
    ],
)  # fmt: skip
def test_a_hundred_rules_take_few_steps_for_each_rule_whatever_the_path(rules: list[str], path: str) -> None:
    matcher = PathRules(rules)
    assert count_steps(lambda: matcher.match((path,))) < 100 * 100


def test_a_long_path_that_can_be_read_in_many_ways_is_not_read_in_all_of_them() -> None:
    target = b"/" + b"a\\b;/.c%2525252525" * 100
    assert len(target) < LONGEST_PATH
    interpretations.cache_clear()
    assert count_steps(lambda: interpretations(target)) < 20_000
    read = interpretations(target)
    assert not read.complete
    assert sum(map(len, read.paths)) <= MOST_CHARACTERS


def test_a_queue_has_a_limited_number_of_rules() -> None:
    check_globs(["/a"] * MOST_GLOBS, "paths")
    with pytest.raises(InvalidRequest, match="at most 100 path rules in paths; these are 5000"):
        check_globs(["/a"] * 5000, "paths")
    with pytest.raises(InvalidRequest, match=r"bypass\.paths; these are 101"):
        Policy(bypass=Bypass(paths=["/a"] * 101)).checked()
    with pytest.raises(InvalidRequest, match="at most 1000 networks"):
        Policy(bypass=Bypass(addresses=["10.0.0.1"] * 1001)).checked()


@pytest.mark.parametrize("piece", [b"/.;\\%252525252e", b"a/../", b"%25", b"/;a\\..", "ạ́".encode(), b"%2525252f"])
def test_reading_takes_steps_in_proportion_to_the_length_of_the_path(piece: bytes) -> None:
    def steps(length: int) -> int:
        interpretations.cache_clear()
        target = b"/" + piece * (length // len(piece))
        return count_steps(lambda: interpretations(target))

    assert steps(2000) < 2.5 * steps(1000) + 500
    # However long it is, what is too long is not looked at.
    assert steps(1_000_000) < 100
    assert steps(2000) < 200 * 2000


def test_addresses() -> None:
    networks = read_networks(["10.0.0.0/8", "2001:db8::/32"])
    assert within("10.1.2.3", networks)
    assert within("::ffff:10.1.2.3", networks)
    assert within("2001:db8::1", networks)
    assert not within("11.0.0.1", networks)
    assert not within("somewhere", networks)
    with pytest.raises(InvalidRequest):
        read_networks(["10.0.0.1/8"])


@pytest.mark.parametrize("glob", ["product/*", "/" + "a" * 512, "/a\n", "/" + "*/" * (MOST_STARS + 1), "/%ff/**"])
def test_rules_that_cannot_work_are_refused(glob: str) -> None:
    with pytest.raises(InvalidRequest):
        check_glob(glob)
