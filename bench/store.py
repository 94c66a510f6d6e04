"""The status-like call, rank and one field: our dispatch with group commit, Fastify with auto-pipelining, FastAPI."""

from __future__ import annotations

import argparse
import random
import sys
import uuid
from collections.abc import Sequence
from typing import Final

from bench import peers
from bench.harness import Case, Contestant, bench_store, compare, running
from bench.load import Request
from bench.report import publish
from headgate.store import Thing
from tests.topology import Standalone

USERS: Final = 100_000
ASKED: Final = 5_000
OURS: Final = "headgate"


def contestants(store: Standalone) -> list[Contestant]:
    """Name who takes part; a peer whose language is missing is left out."""
    environment = {"STORE_PORT": str(store.node.port), "STORE_URL": store.url}
    taking_part = [Contestant(OURS, [sys.executable, "-m", "bench.contestants.status"], environment)]
    fastify = peers.node("status.js")
    if fastify:
        taking_part.append(Contestant("fastify + ioredis", fastify, environment, peers.NODE))
    uvicorn = peers.python("uvicorn", "status:app", "--port", "{port}", "--no-access-log", "--log-level", "warning")
    return [*taking_part, Contestant("fastapi + redis-py", uvicorn, environment, peers.PYTHON)]


def fill(store: Standalone, users: Sequence[str]) -> None:
    """Put all users in line, once in the seed's layout for the peers and once in ours."""
    ours = Thing("hg", "bench", "default", "main")
    pipe = store.node.admin.pipeline(transaction=False)
    for place, user in enumerate(users, 1):
        pipe.zadd("queue:waiting", {user: place})
        pipe.hset(f"queue:waiting:user:{user}", mapping={"userId": user, "nickname": f"player {place}", "ticketId": ""})
        pipe.zadd(ours.key("waiting"), {user: place})
        pipe.hset(ours.key("tickets"), user, "")
        if place % 1000 == 0:
            pipe.execute()  # type: ignore[no-untyped-call]
    pipe.execute()  # type: ignore[no-untyped-call]


def main(arguments: Sequence[str]) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="./dev bench store", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each round")
    parser.add_argument("--connections", type=int, default=64)
    options = parser.parse_args(arguments)
    users = [str(uuid.uuid4()) for _ in range(USERS)]
    asked = [Request(f"/api/queue/status?userId={user}") for user in random.sample(users, ASKED)]
    with bench_store() as store:
        fill(store, users)
        taking_part = contestants(store)
        case = Case("status: rank and one field", {one.name: asked for one in taking_part}, options.connections)
        with running(taking_part, asked[0].path) as servers:
            results = compare(case, servers, store, rounds=options.rounds, seconds=options.seconds)
    publish("store", OURS, results)
