"""Upstreams by name: their policies in the store, remembered here so that a lost one can be brought back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, cast

import msgspec
import structlog

from headgate.kit.problems import Closed, OutcomeUnknown, StoreUnavailable
from headgate.relay.census import Census
from headgate.relay.model import NAMESPACE, Upstream, UpstreamStatus, UpstreamView, UserFigures, upstream_name
from headgate.relay.problems import UpstreamUnknown
from headgate.store import Index, Store, Thing, script
from headgate.store.link import Reply

POLICY_PUT = script(__package__, "policy_put")
POLICY_REMOVE = script(__package__, "policy_remove")
FIGURES = script(__package__, "figures")

FRESH_SECONDS: Final = 1.0
BEAT_SPARE: Final = 0.5

log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Upstream).decode


class Upstreams:
    """Reads and writes policies; what was read less than a second ago is not read again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._index = Index(store, "upstream")
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, tuple[UpstreamView, float]] = {}
        self._counts: dict[str, Census] = {}

    @property
    def index(self) -> Index:
        """Give the list of all upstreams, which also says which are due for a visit."""
        return self._index

    def thing(self, name: str) -> Thing:
        """Name an upstream's thing."""
        return self._store.thing("upstream", NAMESPACE, name)

    def doubt(self, name: str) -> None:
        """Read a policy again before its next use."""
        known = self._known.get(name)
        if known is not None:
            self._known[name] = (known[0], 0.0)

    def confirm(self, name: str, version: int) -> None:
        """Hear which version is in force: the one we know need not be read again, another must be."""
        known = self._known.get(name)
        if known is not None:
            self._known[name] = (known[0], self._loop.time() + BEAT_SPARE if known[0].version == version else 0.0)

    async def get(self, name: str, *, fresh: bool = False) -> UpstreamView:
        """Give an upstream's policy; while the store is away, the one last seen."""
        known = self._known.get(name)
        now = self._loop.time()
        if known is not None and not fresh and now - known[1] < FRESH_SECONDS:
            return known[0]
        thing = self.thing(name)
        try:
            reply = await self._store.read(thing, "HMGET", thing.key("policy"), "document", "version", "gone")
        except Closed:
            raise
        except StoreUnavailable:
            if known is None or fresh:
                raise
            return known[0]
        document, version, gone = cast("list[bytes | None]", reply)
        if version is None and known is not None:
            await self._restore(known[0])
            return await self.get(name, fresh=True)
        if document is None or version is None or gone:
            self._known.pop(name, None)
            raise UpstreamUnknown(f"There is no upstream named {name}.")
        view = UpstreamView(name, int(version), _decode(document))
        self._known[name] = (view, now)
        return view

    async def put(self, name: str, policy: Upstream, *, expected: str = "") -> UpstreamView:
        """Write a policy: in force for the next grant. `expected` is a version, or * for a new one only."""
        upstream_name(name)
        policy.check()
        await self._index.put(self.thing(name), due_in_ms=1000)
        version = await self._write(name, policy, expected)
        view = UpstreamView(name, version, policy)
        self._known[name] = (view, self._loop.time())
        log.info("upstream written", upstream=name, version=version)
        return view

    async def remove(self, name: str) -> bool:
        """Take an upstream out of service; what it was used for stays counted until it is old."""
        thing = self.thing(name)
        removed = await self._store.run(POLICY_REMOVE, thing) == 1
        self._known.pop(name, None)
        if removed:
            await self._index.put(thing, due_in_ms=0)
        return removed

    async def list(self) -> Sequence[UpstreamView]:
        """Give all upstreams, by name."""
        found = []
        for thing in await self._index.list(NAMESPACE):
            try:
                found.append(await self.get(thing.name, fresh=True))
            except UpstreamUnknown:
                continue
        return found

    async def figures(self, name: str, user: str, place: int = 0) -> tuple[UserFigures, int, int]:
        """Tell how it stands with one user, and the position and least wait (ms) of one place in its line."""
        reply = cast("list[Reply]", await self._store.run(FIGURES, self.thing(name), user, place, user=user))
        waiting, flying, cooling, room, held, position, wait = (int(cast("bytes", part)) for part in reply)
        return UserFigures(user, waiting, flying, cooling, room, held), position, wait

    async def status(self, name: str) -> UpstreamStatus:
        """Sum up how it stands with all users of an upstream."""
        await self.get(name)
        census = self._counts.get(name)
        if census is None:

            async def figures(user: str) -> UserFigures:
                return (await self.figures(name, user))[0]

            census = self._counts[name] = Census(self._store, self.thing(name), figures)
        return await census.status()

    async def _restore(self, view: UpstreamView) -> None:
        """Bring back a policy that the store has lost; it begins on hold, as what else was lost is unknown."""
        log.warning("policy lost by the store, bringing it back", upstream=view.name)
        await self._index.put(self.thing(view.name), due_in_ms=1000)
        with suppress(OutcomeUnknown):  # it is read again in any case: somebody else may have been faster
            await self._write(view.name, view.policy, f"restore {view.version}")

    async def _write(self, name: str, policy: Upstream, expected: str) -> int:
        fields = [part for field, value in policy.rules().items() for part in (field, value)]
        reply = await self._store.run(POLICY_PUT, self.thing(name), _encode(policy), expected, policy.hold_ms, *fields)
        return int(cast("bytes", reply))
