"""Players who follow the documents: enter, ask at the pace they are told, show the ticket at the arena, stay and leave."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import Any, Final

import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException

from tests.faults.robustness.history import History
from tests.faults.robustness.system import System

QUEUE: Final = "main"
_LATER: Final = (429, 503, 507)


class Refused(Exception):
    """A definite answer that ends this player's attempt."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status, self.code = status, code


class Player:
    """One person from arrival to departure; `play` returns when it is over, or when the person was told why not."""

    def __init__(self, system: System, client: httpx2.AsyncClient, history: History, name: str, seed: int) -> None:
        self._gateways = [process.url for process in system.of("gateway")]
        self._client, self._history, self._name = client, history, name
        self._choice = random.Random(seed)
        self._gateway = self._choice.choice(self._gateways)
        self._user = self._place_token = ""
        self._admitted = False

    async def play(self) -> None:
        try:
            began = time.monotonic()
            status = await self._enter(str(uuid.uuid4()))
            self._history.add("entered", self._name, began=began, user=self._user, place=status["place"])
            while True:
                status = await self._wait(status)
                if await self._show_ticket(status):
                    return
                status = await self._ask_status()
        except Refused as refused:
            self._history.add("told", self._name, code=refused.code, status=refused.status, admitted=self._admitted)

    async def _wait(self, status: dict[str, Any]) -> dict[str, Any]:
        """Ask at the given pace until called; any other end is an answer too."""
        while True:
            match status["status"]:
                case "PROMOTED":
                    return status
                case "WAITING" | "AWAY":
                    await asyncio.sleep(min(2.0, status["pollAfterMs"] / 1000))
                    status = await self._ask_status()
                case "ACTIVE":  # a seat is kept for who was inside or almost: entering again leads back to it
                    await asyncio.sleep(0.5)
                    status = await self._enter("")
                case ended:
                    raise Refused(200, ended)

    async def _show_ticket(self, status: dict[str, Any]) -> bool:
        """Enter the arena with the ticket, sometimes from two places at once; say whether the visit is over."""
        ticket, address = status["ticketId"], status["server"]["address"]
        tries = 2 if self._choice.random() < 0.1 else 1
        began = time.monotonic()
        found = await asyncio.gather(*(self._open(address, ticket) for _ in range(tries)))
        opened = [one for one in found if one is not None]
        for _ in opened:
            self._history.add("admitted", self._name, began=began, ticket=ticket, arena=address)
        if not opened:
            await asyncio.sleep(self._choice.uniform(0.3, 1.0))
            return False
        self._admitted = True
        stay = self._choice.uniform(0.2, 2.5)
        try:
            async with asyncio.timeout(stay):
                await opened[0].wait_closed()
            by = "arena"  # it was killed or drains
        except TimeoutError:
            by = "player"
        began = time.monotonic()
        crash = self._choice.random() < 0.2
        for connection in opened:
            if crash:
                connection.transport.abort()
            else:
                await connection.close()
        self._history.add("left", self._name, began=began, ticket=ticket, arena=address, by=by, crash=crash)
        if by == "player" and crash and self._choice.random() < 0.5:
            await self._enter(str(uuid.uuid4()))  # a dropped player comes back to the seat that was kept
            return False
        return True

    async def _open(self, address: str, ticket: str) -> ClientConnection | None:
        headers = {"Authorization": f"Bearer {ticket}"}
        try:
            return await connect(address, additional_headers=headers, compression=None, open_timeout=15, proxy=None)
        except InvalidStatus as error:
            self._history.add("ticket refused", self._name, ticket=ticket, status=error.response.status_code)
        except (OSError, TimeoutError, InvalidHandshake, WebSocketException) as error:
            self._history.add("ticket failed", self._name, ticket=ticket, error=type(error).__name__)
        return None

    async def _enter(self, key: str) -> dict[str, Any]:
        body = {"nickname": self._name, "queue": QUEUE}
        headers = {"Idempotency-Key": key}
        if self._user:
            body["userId"] = self._user
            headers = {"X-Place-Token": self._place_token}
        status = await self._ask("POST", "/api/queue/entry", headers, json=body)
        self._user, self._place_token = status["userId"], status["placeToken"]
        return status

    async def _ask_status(self) -> dict[str, Any]:
        parameters = {"userId": self._user, "queue": QUEUE}
        return await self._ask("GET", "/api/queue/status", {"X-Place-Token": self._place_token}, params=parameters)

    async def _ask(self, method: str, path: str, headers: dict[str, str], **options: Any) -> dict[str, Any]:
        """Ask one gateway, then the other, until there is an answer."""
        while True:
            began = time.monotonic()
            try:
                answer = await self._client.request(method, self._gateway + path, headers=headers, **options)
            except httpx2.HTTPError:
                self._gateway = self._choice.choice(self._gateways)
                await asyncio.sleep(self._choice.uniform(0.2, 0.8))
                continue
            document = answer.json()
            if answer.status_code in _LATER:
                self._gateway = self._choice.choice(self._gateways)
                await asyncio.sleep(self._choice.uniform(0.3, 1.0))
                continue
            if answer.status_code != 200:
                raise Refused(answer.status_code, document.get("code", ""))
            self._history.add("status", self._name, began=began, status=document["status"], rank=document["rank"])
            return document  # type: ignore[no-any-return]
