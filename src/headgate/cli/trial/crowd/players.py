"""The simulated players: each arrives, waits, is promoted, enters, stays and leaves, according to its behaviour."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from headgate.cli.trial.crowd.client import CrowdClient, CrowdSocket, Unreachable, handshake
from headgate.cli.trial.crowd.record import Behaviour, CrowdRecord, Promise, Wait
from headgate.kit.ids import new_uuid
from headgate.waiting_room.model import State
from headgate.waiting_room.wire import Entry, Status

FRIENDS: Final = 3
HANDSHAKES: Final = 5
LEAST_PAUSE: Final = 0.2
MOST_PAUSE: Final = 30.0
IN_LINE: Final = frozenset({State.WAITING, State.AWAY})
HELLO: Final = b'{"type":"MESSAGE_SEND","payload":{"message":"hello"}}'

_entry = msgspec.json.Decoder(Entry).decode
_status = msgspec.json.Decoder(Status).decode
_document = msgspec.json.Decoder(dict[str, object]).decode
_Answer = TypeVar("_Answer")


class Scene(msgspec.Struct, frozen=True):
    """The objects and options that all players share."""

    client: CrowdClient
    record: CrowdRecord
    queue: str
    namespace: str
    stay_seconds: float
    arena: str | None
    chatty: bool


class PlayerGone(Exception):
    """The queue lost this player, or the arena refused it."""


class CrowdPlayer:
    """One simulated player."""

    def __init__(self, scene: Scene, number: int, behaviour: Behaviour, chance: random.Random) -> None:
        self._scene = scene
        self._record = scene.record
        self._chance = chance
        self._behaviour = behaviour
        self._nickname = f"player {number}"
        self._user = ""
        self._token = ""
        self._place = 0
        self._rank: int | None = None
        self._eta: tuple[float, float, float] | None = None
        self._arrived = 0.0

    async def play(self) -> None:
        """Run the player from arrival to departure."""
        record = self._record
        record.arrived += 1
        record.waiting += 1
        self._arrived = monotonic()
        waiting = True
        try:
            promoted = await self._wait()
            if promoted is None:
                record.abandoned += 1
                return
            record.waiting -= 1
            waiting = False
            await self._enter(promoted)
        except PlayerGone as why:
            record.lost += 1
            record.refusals[str(why)] += 1
            record.check(Promise.NOBODY_LOST, kept=False)
        else:
            record.check(Promise.NOBODY_LOST, kept=True)
        finally:
            record.done += 1
            record.waiting -= waiting

    async def _wait(self) -> Status | None:
        """Wait until promoted; None if the player gave up."""
        entry = await self._ask_entry(idempotency_key=new_uuid())
        self._user, self._token, self._place = entry.user_id, entry.place_token, entry.place
        status: Status = entry
        patience = self._chance.randint(1, 4) if self._behaviour is Behaviour.ABANDONING else None
        while True:
            self._look(status)
            if status.status is State.PROMOTED:
                return status
            if status.status not in IN_LINE:
                raise PlayerGone(f"ended as {status.status}")
            if patience is not None:
                patience -= 1
                if patience < 0:
                    return None
            await asyncio.sleep(status.poll_after_ms / 1000)
            if self._behaviour is Behaviour.REFRESHING and self._chance.random() < 0.5:
                again = await self._ask_entry()
                self._record.check(Promise.REFRESH_KEEPS_THE_PLACE, again.place == self._place)
                status = again
            else:
                status = await self._ask_status()

    def _look(self, status: Status) -> None:
        if self._rank is not None:
            self._record.check(Promise.RANK_NEVER_RISES, status.rank <= self._rank)
        self._rank = status.rank
        if self._eta is None and status.eta is not None:
            since = monotonic() - self._arrived
            self._eta = (status.eta.seconds + since, status.eta.low + since, status.eta.high + since)

    async def _enter(self, promoted: Status) -> None:
        record = self._record
        eta = self._eta or (None, None, None)
        record.waits.append(Wait(self._arrived, monotonic() - self._arrived, *eta))
        socket: CrowdSocket | None = await self._connect(promoted)
        record.admitted += 1
        record.inside += 1
        try:
            assert socket is not None
            stay = self._chance.expovariate(1 / self._scene.stay_seconds)
            if self._scene.chatty:
                socket.send(HELLO)
            if self._behaviour is not Behaviour.CRASHING:
                await asyncio.sleep(stay)
                return
            await asyncio.sleep(stay / 2)
            socket.crash()
            socket = None
            await asyncio.sleep(LEAST_PAUSE)
            back = await self._come_back()
            socket = await self._connect(back)
            record.came_back += 1
            await asyncio.sleep(stay / 2)
        finally:
            record.inside -= 1
            if socket is not None:  # also when the run is stopped, so that no seats are kept for it
                socket.leave()

    async def _connect(self, promoted: Status) -> CrowdSocket:
        """Enter the arena with the ticket; a sharing player tries several connections at the same moment."""
        address = self._scene.arena or (promoted.server.address if promoted.server else "")
        ticket = str(promoted.ticket or promoted.ticket_id)
        if not address:
            raise PlayerGone("no arena")
        friends = FRIENDS if self._behaviour is Behaviour.SHARING else 1
        inside = [
            socket
            for socket in await asyncio.gather(*(self._handshake(address, ticket) for _ in range(friends)))
            if socket
        ]
        self._record.check(Promise.CALLED_MEANS_ENTERED, bool(inside))
        if friends > 1:
            self._record.check(Promise.ONE_TICKET_ONE_ENTRY, len(inside) == 1)
        for socket in inside[1:]:
            socket.leave()
        if not inside:
            raise PlayerGone("not let in")
        return inside[0]

    async def _handshake(self, address: str, ticket: str) -> CrowdSocket | None:
        """Open a WebSocket to the arena, with retries after 429 and 503."""
        for _ in range(HANDSHAKES):
            try:
                status, socket = await handshake(address, ticket)
            except Unreachable as error:
                self._record.refusals[error.code] += 1
            else:
                if socket is not None:
                    return socket
                self._record.refusals[f"handshake {status}"] += 1
                if status not in (429, 503):
                    return None
            await asyncio.sleep(self._chance.uniform(1.0, 2.0))
        return None

    async def _come_back(self) -> Status:
        """Enter the queue again after a crash, and wait for the seat that was kept."""
        status: Status = await self._ask_entry()
        while status.status is not State.PROMOTED:
            if status.status not in IN_LINE and status.status is not State.ACTIVE:
                raise PlayerGone(f"could not come back: {status.status}")
            await asyncio.sleep(max(LEAST_PAUSE, min(1.0, status.poll_after_ms / 1000)))
            status = await self._ask_entry()
        return status

    async def _ask_entry(self, idempotency_key: str | None = None) -> Entry:
        body: dict[str, str] = {"nickname": self._nickname, "queue": self._scene.queue}
        headers = {}
        if self._user:
            body["userId"] = self._user
            headers["X-Place-Token"] = self._token
        if idempotency_key:
            headers["Idempotency-Key"] = idempotency_key
        path = f"/api/queue/entry?namespace={quote(self._scene.namespace)}"
        return _read(_entry, await self._ask("POST", path, msgspec.json.encode(body), headers))

    async def _ask_status(self) -> Status:
        scene = self._scene
        path = f"/api/queue/status?userId={self._user}&queue={quote(scene.queue)}&namespace={quote(scene.namespace)}"
        return _read(_status, await self._ask("GET", path, b"", {"X-Place-Token": self._token}))

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        """Send a request until it succeeds, with a backoff after 429, 503 and lost connections."""
        record = self._record
        pause = 0.5
        while True:
            started = perf_counter()
            record.requests += 1
            try:
                status, content = await self._scene.client.call(method, path, body, headers)
            except Unreachable as error:
                code, wait = error.code, pause
            else:
                record.answers_ms.append((perf_counter() - started) * 1000)
                if 200 <= status < 300:
                    return content
                problem = _problem(content)
                code, wait = str(problem.get("code", f"answer {status}")), pause
                if status not in (429, 503):
                    raise PlayerGone(code)
                told = problem.get("retryAfter")
                wait = float(told) if isinstance(told, (int, float)) else pause
            record.refusals[code] += 1
            await asyncio.sleep(wait * self._chance.uniform(1.0, 1.5))
            pause = min(pause * 2, MOST_PAUSE)


def _read(decode: Callable[[bytes], _Answer], content: bytes) -> _Answer:
    try:
        return decode(content)
    except msgspec.DecodeError as error:
        raise PlayerGone("an answer that is not ours") from error


def _problem(content: bytes) -> dict[str, object]:
    """Decode a problem document; empty if a proxy in front of the gateway wrote something else."""
    try:
        return _document(content)
    except msgspec.DecodeError:
        return {}
