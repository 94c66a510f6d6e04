"""Request limits: per client address and per user, through proxies that are trusted and those that are not."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from headgate.gateway.settings import RateLimit
from tests.http.sample_process import SampleProcess, SampleStarter
from tests.http.test_requests import problem
from tests.topology import Topology, wait_until

LIMITED = "/sample/limited"


@pytest.fixture(scope="module")
def behind_proxies(server: Topology) -> Iterator[SampleProcess]:
    """A gateway that trusts this machine as a proxy, and two networks; each test has addresses of its own."""
    with SampleProcess(server.url, trusted_proxies=["127.0.0.1", "10.0.0.0/8", "fd00::/8"]) as process:
        yield process


def statuses(client: httpx2.Client, number: int, path: str = LIMITED, **headers: str) -> list[int]:
    return [client.get(path, headers=headers).status_code for _ in range(number)]


def test_address_that_asks_too_often_is_told_when_to_come_back(fresh_sample: SampleStarter) -> None:
    with fresh_sample(limits={"tight": RateLimit(per_second=0.2, burst=3)}).client() as client:
        assert statuses(client, 3) == [204, 204, 204]
        response = client.get(LIMITED)
        document = problem(response, 429, "rate_limited")
        assert 1 <= int(response.headers["retry-after"]) <= 5
        assert document["retryAfter"] == int(response.headers["retry-after"])
        assert response.headers["ratelimit-policy"] == '"tight";q=3;w=15'
        assert response.headers["ratelimit"].startswith('"tight";r=0;t=')
        wait_until(lambda: client.get(LIMITED).status_code == 204, 7, "the limit lets go")


def test_other_routes_are_not_held_to_it(fresh_sample: SampleStarter) -> None:
    with fresh_sample().client() as client:
        assert statuses(client, 4)[-1] == 429
        assert statuses(client, 20, "/sample/search?name=a") == [200] * 20


def test_user_is_counted_whatever_the_address(behind_proxies: SampleProcess) -> None:
    with behind_proxies.client() as client:

        def ask(user: str, address: str) -> int:
            headers = {"X-Forwarded-For": address}
            return client.get(f"/sample/limited-user?name={user}", headers=headers).status_code

        assert [ask("ann", f"192.0.2.{host}") for host in range(3)] == [204, 204, 429]
        assert ask("bob", "192.0.2.77") == 204


def test_forwarded_addresses_are_believed_from_trusted_proxies_only(
    behind_proxies: SampleProcess, sample: SampleProcess
) -> None:
    def client_of(gateway: SampleProcess, forwarded: str) -> str:
        with gateway.client() as client:
            response = client.get("/sample/search?name=a", headers={"X-Forwarded-For": forwarded})
            return str(response.json()["client"])

    assert client_of(behind_proxies, "192.0.2.1") == "192.0.2.1"
    assert client_of(behind_proxies, "192.0.2.1, 10.1.2.3") == "192.0.2.1"
    assert client_of(behind_proxies, "6.6.6.6, 192.0.2.1, 10.1.2.3") == "192.0.2.1"
    assert client_of(behind_proxies, "10.1.2.3, 192.0.2.1") == "192.0.2.1"
    assert client_of(behind_proxies, "2001:db8::1") == "2001:db8::1"
    assert client_of(behind_proxies, "[2001:db8::1]:443, fd00::5") == "2001:db8::1"
    assert client_of(behind_proxies, "192.0.2.1:1234") == "192.0.2.1"
    assert client_of(behind_proxies, "nonsense") == "127.0.0.1"
    assert client_of(behind_proxies, "192.0.2.9, nonsense") == "127.0.0.1"
    assert client_of(sample, "192.0.2.1") == "127.0.0.1"


def test_visitor_cannot_choose_another_address_to_be_counted_by(behind_proxies: SampleProcess) -> None:
    with behind_proxies.client() as client:
        codes = [
            client.get(LIMITED, headers={"X-Forwarded-For": f"10.9.9.{number}, 192.0.2.50"}).status_code
            for number in range(5)
        ]
        assert codes == [204, 204, 204, 429, 429]


def test_one_ipv6_customer_is_one_address(behind_proxies: SampleProcess) -> None:
    with behind_proxies.client() as client:
        codes = [
            client.get(LIMITED, headers={"X-Forwarded-For": f"2001:db8:1:2::{number:x}"}).status_code
            for number in range(4)
        ]
        assert codes == [204, 204, 204, 429]
        assert client.get(LIMITED, headers={"X-Forwarded-For": "2001:db8:1:3::1"}).status_code == 204


def test_callers_with_a_token_and_our_own_proxies_are_not_counted_by_address(
    behind_proxies: SampleProcess, fresh_sample: SampleStarter
) -> None:
    with behind_proxies.client() as client:
        assert statuses(client, 10) == [204] * 10
    with fresh_sample().admin() as admin:
        assert statuses(admin, 10) == [204] * 10


def test_limits_are_settings(fresh_sample: SampleStarter) -> None:
    with fresh_sample(limits={"tight": RateLimit(per_second=0.1, burst=1)}).client() as client:
        assert statuses(client, 2) == [204, 429]
