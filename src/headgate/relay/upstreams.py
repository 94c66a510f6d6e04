"""Upstreams by name: their policies in the store, cached here so that a lost policy can be written back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, cast

import msgspec

from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, OutcomeUnknown, StoreUnavailable
from headgate.relay.model import NAMESPACE, Upstream, upstream_name
from headgate.relay.problems import UpstreamUnknown
from headgate.relay.upstream_status import UpstreamStatusReader
from headgate.relay.wire import UpstreamStatus, UpstreamView, UserFigures
from headgate.store import Index, Store, Thing, script
from headgate.store.client.link import Reply

POLICY_PUT = script(__package__, "policy_put")
POLICY_FREE = script(__package__, "policy_free")
POLICY_REMOVE = script(__package__, "policy_remove")
FIGURES = script(__package__, "figures")

FRESH_SECONDS: Final = 1.0
BEAT_SPARE: Final = 0.5
LEAST_SECONDS: Final = 0.5  # the least time that the store gets to answer, however short the caller's deadline is
THERE: Final = "there"  # the expected version of a change to an existing upstream, whichever version it has
GONE_MS: Final = 86_400_000  # for how long it stays known that an upstream was removed
RESTORE_SECONDS: Final = 43_200.0  # a policy not seen for longer may have been removed since

log = get_logger()
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Upstream).decode


class Upstreams:
    """Reads and writes policies; a policy read less than a second ago comes from the cache."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._index = Index(store, "upstream")
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, tuple[UpstreamView, float]] = {}
        self._seen: dict[str, float] = {}
        self._counts: dict[str, UpstreamStatusReader] = {}

    @property
    def index(self) -> Index:
        """Return the index of all upstreams, which also says which are due for a sweep."""
        return self._index

    def thing(self, name: str) -> Thing:
        """Return an upstream's thing."""
        return self._store.thing("upstream", NAMESPACE, name)

    def expire(self, name: str) -> None:
        """Expire the cached policy, so that it is read again before its next use."""
        known = self._known.get(name)
        if known is not None:
            self._known[name] = (known[0], 0.0)

    def confirm(self, name: str, version: int) -> None:
        """Compare the cached policy with the version in force: keep it fresh if they agree, else expire it."""
        known = self._known.get(name)
        if known is not None:
            self._seen[name] = self._loop.time()
            self._known[name] = (known[0], self._loop.time() + BEAT_SPARE if known[0].version == version else 0.0)

    def knows(self, name: str) -> bool:
        """Whether an upstream is cached: it existed when it was last read."""
        return name in self._known

    async def get(self, name: str, *, fresh: bool = False, deadline: float | None = None) -> UpstreamView:
        """Return an upstream's policy; during an outage of the store, the cached one, before the caller's deadline."""
        known = self._known.get(name)
        now = self._loop.time()
        if known is not None and not fresh and now - known[1] < FRESH_SECONDS:
            return known[0]
        thing = self.thing(name)
        if deadline is None and known is not None and not fresh:
            deadline = now + known[0].policy.deadline_seconds
        limit = self._store.deadline()
        if deadline is not None:
            limit = min(limit, max(deadline, now + LEAST_SECONDS))
        try:
            reply = await self._store.read(
                thing, "HMGET", thing.key("policy"), "document", "version", "gone", deadline=limit
            )
        except Closed:
            raise
        except StoreUnavailable:
            if known is None or fresh:
                raise
            if name in self._known:  # the next callers need not wait for the same timeout
                self._known[name] = (known[0], self._loop.time())
            return known[0]
        document, version, gone = cast("list[bytes | None]", reply)
        if version is None and known is not None and now - self._seen[name] < RESTORE_SECONDS:
            await self._restore(known[0])
            return await self.get(name, fresh=True)
        if document is None or version is None or gone:
            self._forget(name)
            raise UpstreamUnknown(f"There is no upstream named {name}.")
        view = UpstreamView(name, int(version), _decode(document))
        self._remember(view)
        return view

    async def put(self, name: str, policy: Upstream, *, expected: str = "") -> UpstreamView:
        """Write a policy, in force for the next grant. `expected` is a version, * for a new upstream only, or THERE.

        An upstream that the store does not know may be one that it has lost. It begins on hold, until the
        store is known to have lost nothing within the longest window of its limits.
        """
        upstream_name(name)
        policy.check()
        _, noted = await self._index.age(self.thing(name))
        await self._index.put(self.thing(name), due_in_ms=1000)
        version, created = await self._write(name, policy, expected)
        if created and not noted:
            age_ms, _ = await self._index.age(self.thing(name))
            await self._store.run(POLICY_FREE, self.thing(name), age_ms)
        view = UpstreamView(name, version, policy)
        self._remember(view)
        log.info("upstream written", upstream=name, version=version)
        return view

    async def remove(self, name: str) -> bool:
        """Take an upstream out of service; permits already used stay counted until their windows end."""
        thing = self.thing(name)
        removed = await self._store.run(POLICY_REMOVE, thing) == 1
        self._forget(name)
        if removed:
            await self._index.put(thing, due_in_ms=0)
        return removed

    async def list(self) -> Sequence[UpstreamView]:
        """List all upstreams, by name."""
        found = []
        for thing in await self._index.list(NAMESPACE):
            try:
                found.append(await self.get(thing.name, fresh=True))
            except UpstreamUnknown:
                continue
        return found

    async def figures(self, name: str, user: str, place: int = 0, units: int = 1) -> tuple[UserFigures, int, int]:
        """Return the figures of one user, and the position and likely wait (ms) of one place in their line."""
        reply = cast("list[Reply]", await self._store.run(FIGURES, self.thing(name), user, place, units, user=user))
        waiting, in_flight, cooling, room, held, position, wait, jobs = (int(cast("bytes", part)) for part in reply)
        return UserFigures(user, waiting, in_flight, cooling, room, held, jobs), position, wait

    async def status(self, name: str) -> UpstreamStatus:
        """Sum up the figures of all users of an upstream."""
        await self.get(name)
        census = self._counts.get(name)
        if census is None:

            async def figures(user: str) -> UserFigures:
                return (await self.figures(name, user))[0]

            census = self._counts[name] = UpstreamStatusReader(self._store, self.thing(name), figures)
        return await census.status()

    def _remember(self, view: UpstreamView) -> None:
        self._seen[view.name] = self._loop.time()
        self._known[view.name] = (view, self._seen[view.name])

    def _forget(self, name: str) -> None:
        for memory in (self._known, self._seen, self._counts):
            memory.pop(name, None)

    async def _restore(self, view: UpstreamView) -> None:
        """Write back a policy that the store has lost; it begins on hold, since other data may be lost too."""
        log.warning("policy lost by the store, bringing it back", upstream=view.name)
        await self._index.put(self.thing(view.name), due_in_ms=1000)
        with suppress(OutcomeUnknown):  # it is read again in any case: another process may have written it first
            await self._write(view.name, view.policy, f"restore {view.version}")

    async def note_new_store(self) -> None:
        """Record that this store is new: it can have lost nothing, so no upstream begins on hold."""
        await self._index.note_age(new=True)

    async def _write(self, name: str, policy: Upstream, expected: str) -> tuple[int, bool]:
        """Write a policy; return its version, and whether the upstream is new to the store."""
        written = policy.rules() | {"lease": str(policy.lease_ms)}
        fields = [part for field, value in written.items() for part in (field, value)]
        reply = cast(
            "list[Reply]",
            await self._store.run(POLICY_PUT, self.thing(name), _encode(policy), expected, policy.hold_ms, *fields),
        )
        return int(cast("bytes", reply[0])), reply[1] == 1
