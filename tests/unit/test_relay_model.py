"""The values that an upstream's policy and a request's headers may have, and what a limit becomes for the scripts."""

from __future__ import annotations

import msgspec
import pytest

from headgate.kit.problems import InvalidRequest
from headgate.relay.headers import pause_of, request_headers, units_of
from headgate.relay.model import Counter, Kind, Limit, Upstream
from headgate.relay.problems import UpstreamFailed


def upstream(**headers: str) -> Upstream:
    return Upstream(base_url="http://a.test/v1", limits=(Limit(count=1, seconds=1.0),), headers=headers)


@pytest.mark.parametrize(
    ("seconds", "ms"), [(1.0, 1000), (1.0004, 1001), (0.001, 1), (2.3, 2300), (8.2, 8200), (1.1, 1100), (60, 60_000)]
)
def test_a_window_is_never_rounded_to_a_shorter_one(seconds: float, ms: int) -> None:
    assert Limit(count=3, seconds=seconds).rules(Counter.LOG) == [f"w 3 {ms} 0;"]
    assert Limit(kind=Kind.BUCKET, count=3, seconds=seconds, burst=2).rules(Counter.LOG) == [f"b 3 {ms} 2;"]


def test_a_window_of_no_time_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"count": 1, "seconds": 0.0001}', type=Limit)


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "Connection", "Expect", "TE"])
def test_what_frames_a_message_is_no_header_of_a_policy(name: str) -> None:
    with pytest.raises(InvalidRequest):
        upstream(**{name: "1"}).check()


@pytest.mark.parametrize("value", ["a\r\nb", "a\0", "\x7f", "한"])
def test_a_header_that_cannot_be_written_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest):
        upstream(**{"X-A": value}).check()
    upstream(**{"X-A": "\tplain é"}).check()


def test_there_is_one_host() -> None:
    def hosts(policy: Upstream) -> list[bytes]:
        written = request_headers([(b"host", b"relay.test")], policy, {}, length=-1)
        return [value for name, value in written if name == b"host"]

    assert hosts(upstream()) == [b"a.test"]
    assert hosts(upstream(Host="b.test")) == [b"b.test"]
    assert hosts(msgspec.structs.replace(upstream(), base_url="http://한글.kr:81/v1")) == [b"xn--bj0bj06e.kr:81"]


@pytest.mark.parametrize(
    "url", ["http://a.test./", "http://[::1]:80/", "http://1.2.3.4/", "http://한글.kr/", "http://a_b/"]
)
def test_hosts_that_can_be_asked_are_taken(url: str) -> None:
    msgspec.structs.replace(upstream(), base_url=url).check()


def test_a_secret_that_cannot_be_written_sends_nothing() -> None:
    with pytest.raises(UpstreamFailed) as caught:
        request_headers([], upstream(**{"X-Key": "{secret:key}"}), {"key": "한"}, length=-1)
    assert caught.value.members["outcome"] == "unsent"
    assert "한" not in caught.value.detail


@pytest.mark.parametrize("value", [b"0", b"1001", b"-1", b"\xb2", b"9" * 5000, b""])
def test_a_cost_is_a_small_whole_number(value: bytes) -> None:
    with pytest.raises(InvalidRequest):
        units_of([(b"x-permits", value)])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"7", 7.0),
        (b"9" * 5000, 21_600.0),
        (b"\xb2", 1.5),
        (b"soon", 1.5),
        (b"Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        (b"Mon, 01 Jan 0001 00:00:00", 0.0),
        (b"Thu, 01 Jan 99999 00:00:00 GMT", 1.5),
        (b"Fri, 31 Dec 9999 23:59:59 -2300", 21_600.0),
    ],
)
def test_whatever_an_upstream_says_of_a_pause_is_read(value: bytes, seconds: float) -> None:
    assert pause_of([(b"retry-after", value)], 1.5) == seconds
