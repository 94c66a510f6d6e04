"""Buckets: exact, steady, and bounded in memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.gateway import limits
from headgate.gateway.limits import Buckets
from headgate.http.client_addresses import client_network
from headgate.kit.problems import RateLimited


class Clock:
    """A monotonic clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(limits, "monotonic", made)
    return made


def taken(buckets: Buckets, key: str = "a", most: int = 1000) -> int:
    """Take until refused, and count."""
    for number in range(most):
        try:
            buckets.take(key)
        except RateLimited:
            return number
    return most


def test_a_burst_and_then_a_steady_rate(clock: Clock) -> None:
    buckets = Buckets("x", per_second=2, burst=10)
    assert taken(buckets) == 10
    clock.now += 0.49
    assert taken(buckets) == 0
    clock.now += 0.01
    assert taken(buckets) == 1
    clock.now += 3
    assert taken(buckets) == 6
    clock.now += 1000
    assert taken(buckets) == 10


def test_refusal_says_when_the_next_is_allowed(clock: Clock) -> None:
    buckets = Buckets("x", per_second=0.25, burst=1)
    buckets.take("a")
    with pytest.raises(RateLimited) as refusal:
        buckets.take("a")
    assert refusal.value.retry_after == 4
    clock.now += 4
    buckets.take("a")


def test_keys_are_counted_apart(clock: Clock) -> None:
    buckets = Buckets("x", per_second=1, burst=2)
    assert taken(buckets, "a") == 2
    assert taken(buckets, "b") == 2


def test_memory_is_bounded_and_the_active_are_remembered(clock: Clock) -> None:
    buckets = Buckets("x", per_second=0.001, burst=2, most=100)
    assert taken(buckets, "busy") == 2
    for number in range(5000):
        buckets.take(f"passer-by {number}")
        if number % 50 == 0:
            assert taken(buckets, "busy") == 0, "a refused key is still looked up"
        assert len(buckets) <= 200


@given(
    per_second=st.floats(0.1, 100),
    burst=st.integers(1, 50),
    pauses=st.lists(st.floats(0, 5), min_size=1, max_size=60),
)
def test_never_more_than_burst_and_rate_allow(per_second: float, burst: int, pauses: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(limits, "monotonic", clock)
        buckets = Buckets("x", per_second, burst)
        began, passed = clock.now, 0
        for pause in pauses:
            clock.now += pause
            passed += taken(buckets, most=burst + 1)
            assert passed <= burst + (clock.now - began) * per_second + 1e-6


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("2001:db8:1:2:3:4:5:6", "2001:0db8:0001:0002::/64"),
        ("2001:db8:1:2::", "2001:0db8:0001:0002::/64"),
        ("fe80::1%eth0", "fe80:0000:0000:0000::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_an_ipv6_customer_is_one_ipv6_network(address: str, counted: str) -> None:
    assert client_network(address) == counted
