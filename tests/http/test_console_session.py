"""The console's cookie: signed with the signing keys, so that it says nothing of the admin token."""

from __future__ import annotations

import json
import secrets

import httpx2

from headgate.waiting_room.signing import SigningKeys
from tests.processes import GatewayProcess
from tests.topology import Topology


def signed_in(gateway: GatewayProcess, token: str) -> str:
    answer = httpx2.post(
        f"{gateway.url}/console/session",
        json={"token": token},
        headers={"X-Headgate-Console": "1", "Origin": gateway.url},
    )
    assert answer.status_code == 200, answer.text
    return str(answer.headers["set-cookie"]).partition(";")[0]


def session(gateway: GatewayProcess, cookie: str) -> int:
    return httpx2.get(f"{gateway.url}/console/session", headers={"Cookie": cookie}).status_code


def test_the_admin_token_alone_makes_no_cookie(server: Topology) -> None:
    token = {"HEADGATE_ADMIN_TOKEN": secrets.token_urlsafe(24)}
    with GatewayProcess(server.url, environment=token) as one, GatewayProcess(server.url, environment=token) as other:
        cookie = signed_in(one, token["HEADGATE_ADMIN_TOKEN"])
        assert session(one, cookie) == 200
        assert session(other, cookie) == 401, "the same token with other signing keys makes another cookie"


def test_gateways_with_the_same_keys_share_sessions_until_the_admin_token_changes(server: Topology) -> None:
    new, old = SigningKeys.generate(), SigningKeys.generate()
    both = json.dumps({"keys": [key for keys in (new, old) for key in json.loads(keys)["keys"]]})
    shared = {"HEADGATE_ADMIN_TOKEN": secrets.token_urlsafe(24)}
    with (
        GatewayProcess(server.url, environment={**shared, "HEADGATE_SIGNING_KEYS": old}) as before,
        GatewayProcess(server.url, environment={**shared, "HEADGATE_SIGNING_KEYS": both}) as rotated,
        GatewayProcess(server.url, environment={"HEADGATE_SIGNING_KEYS": old}) as changed,
    ):
        cookie = signed_in(before, shared["HEADGATE_ADMIN_TOKEN"])
        assert session(before, cookie) == session(rotated, cookie) == 200
        assert session(changed, cookie) == 401
