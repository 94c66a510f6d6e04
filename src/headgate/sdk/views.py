"""What a client knows of a service: fed by a watch and by every discovery, kept on disk, and never emptied by a loss.

When the store's history may have been lost, instances that the new state does not show are kept as suspects for one lease:
whoever lives has registered again by then.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Final

import msgspec

from headgate.kit.problems import Closed, HeadgateError, StoreUnavailable
from headgate.registry.model import Change, Instance, Listing
from headgate.sdk.listeners import Listener, Listening
from headgate.sdk.registry_modes import Gone, Happening, Listed, Marked, Put
from headgate.sdk.snapshot import Snapshots

WRITE_SECONDS: Final = 1.0

Key = tuple[str, str]


class Saved(msgspec.Struct, frozen=True):
    """A view on disk."""

    instances: list[Instance]
    revision: int
    epochs: dict[str, str] = {}


class InstanceList(list[Instance]):
    """Instances, with the revision they are of; `stale` says that this is what was last known, not what is."""

    def __init__(self, instances: list[Instance], *, stale: bool, revision: int) -> None:
        super().__init__(instances)
        self.stale = stale
        self.revision = revision


class View:
    """One service, or all groups of a type, as last known here."""

    def __init__(self, name: str, snapshots: Snapshots[Saved] | None) -> None:
        self.known = False
        self.stale = True
        self.revision = 0
        self.position: str | None = None
        self.refusal: HeadgateError | None = None
        self.listening: list[Listening[Change]] = []
        self.heard = asyncio.Event()
        self._epochs: dict[str, str] = {}
        self._revisions: dict[str, int] = {}
        self._name = name
        self._snapshots = snapshots
        self._instances: dict[Key, Instance] = {}
        self._suspects: dict[Key, float] = {}
        self._dirty = asyncio.Event()
        self._closed = False

    def instances(self) -> list[Instance]:
        """Give all instances known now."""
        self._drop_suspects()
        return list(self._instances.values())

    def answer(self, *, stale: bool | None = None) -> InstanceList:
        """Give them with their revision and whether they are stale."""
        return InstanceList(self.instances(), stale=self.stale if stale is None else stale, revision=self.revision)

    def load(self) -> None:
        """Start from the disk's snapshot, if there is one; this blocks."""
        saved = self._snapshots.read(self._name) if self._snapshots and not self.known else None
        if saved is not None:
            self._instances = {_key(each): each for each in saved.instances}
            self.revision, self._epochs, self.known = saved.revision, dict(saved.epochs), True

    def is_of(self, listing: Listing, group: str | None) -> bool:
        """Tell whether an answer, whatever it chose, is of the very state that is known here."""
        histories = _histories(listing, group)
        return self.known and all(
            (self._epochs.get(name), self._revisions.get(name)) == at for name, at in histories.items()
        ) and {name for name, _ in self._instances} <= histories.keys()  # fmt: skip

    def discovered(self, listing: Listing, group: str | None) -> bool:
        """Take the answer of a discovery, each group for itself; tell whether it brought anything new."""
        before, known = set(self._instances), self.is_of(listing, group)
        by_group: dict[str, list[Instance]] = {}
        for instance in listing.instances:
            by_group.setdefault(instance.group, []).append(instance)
        histories = _histories(listing, group)
        for name, (epoch, revision) in histories.items():
            if epoch == self._epochs.get(name) and revision < self._revisions.get(name, 0):
                continue  # the watch has gone on since
            lost = self._lost(name, epoch)
            self._epochs[name] = epoch
            self._replace(by_group.get(name, []), name, revision, lost=lost)
        # A group that has instances is always listed, unless the list itself was lost.
        for name in {name for name, _ in self._instances} - histories.keys():
            self._replace([], name, listing.revision, lost=True)
        self.known, self.stale = True, False
        return not known or before != self._instances.keys()

    def take(self, happening: Happening) -> None:
        """Take what a watch tells."""
        match happening:
            case Listed():
                self._replace(happening.instances, happening.group, happening.revision, lost=happening.lost)
            case Put():
                self._put(happening.instance, happening.revision)
                self._advance(happening.instance.group, happening.revision)
            case Gone():
                self._remove((happening.group, happening.instance_id), happening.revision, happening.reason)
                self._advance(happening.group, happening.revision)
            case Marked():
                if happening.groups is not None:
                    # A group that has instances is always told, unless the list of groups itself was lost.
                    for name in {name for name, _ in self._instances} - happening.groups:
                        self._replace([], name, self.revision, lost=True)
                self.position = happening.position
                self.known, self.stale, self.refusal = True, False, None
                self.heard.set()
                return
        self._dirty.set()

    def refused(self, error: HeadgateError) -> bool:
        """Take it that the watch may not be had; True if that may be due to its position, and the state is listed anew."""
        if self.position is not None:
            self.position = None
            return True
        self.refusal = error
        self.heard.set()
        return False

    async def first(self, seconds: float) -> None:
        """Wait until something is known; raises what stands against it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.known and self.refusal is None:
                    self.heard.clear()
                    await self.heard.wait()
        if not self.known:
            raise self.refusal or StoreUnavailable("Nobody could be asked, and nothing is known from before.")

    async def listen(self, listener: Listener[Change]) -> None:
        """Call a listener with every change from now on, and with what is known at once."""
        if self._closed:
            raise Closed
        made = Listening(listener, lambda change: _key(change.instance))
        self.listening.append(made)
        if self.known:
            for instance in self.instances():
                made.tell(Change("put", instance, self.revision))

    async def unlisten(self, listener: Listener[Change]) -> None:
        """Stop calling one listener; the others stay."""
        for made in [each for each in self.listening if each.listener == listener][:1]:
            self.listening.remove(made)
            await made.stop()

    async def close(self) -> None:
        """Call nobody any more, and tell whoever waits for the first answer."""
        self._closed = True
        self.refusal = Closed()
        self.heard.set()
        listening, self.listening = self.listening, []
        for made in listening:
            await made.stop()

    async def keep(self) -> None:
        """Write the snapshot after changes, and let suspects go when their time is over."""
        while True:
            timeout = WRITE_SECONDS if self._suspects else None
            try:
                async with asyncio.timeout(timeout):
                    await self._dirty.wait()
            except TimeoutError:
                self._drop_suspects()
                continue
            self._dirty.clear()
            await self.save()
            await asyncio.sleep(WRITE_SECONDS)

    async def save(self) -> None:
        """Write the snapshot now."""
        if self._snapshots is not None and self.known:
            saved = Saved(list(self._instances.values()), self.revision, dict(self._epochs))
            await asyncio.to_thread(self._snapshots.write, self._name, saved)

    def _advance(self, group: str, revision: int) -> None:
        self.revision = max(self.revision, revision)
        self._revisions[group] = max(self._revisions.get(group, 0), revision)

    def _lost(self, group: str, epoch: str) -> bool:
        """Tell whether a group's history began anew since we know of it; a watch tells no epoch, but revisions grow with them."""
        if group in self._epochs:
            return epoch != self._epochs[group]
        return self._revisions.get(group, 0) > 0 and (epoch == "0" or int(epoch) > self._revisions[group])

    def _replace(self, instances: list[Instance], group: str, revision: int, *, lost: bool) -> None:
        before = {key for key in self._instances if key[0] == group}
        now = monotonic()
        for instance in instances:
            self._put(instance, revision)
            before.discard(_key(instance))
        for key in before - self._suspects.keys():  # a suspect has its lease, whoever does not list it
            if not lost:
                self._remove(key, revision, "removed")
            else:
                suspect = msgspec.structs.replace(self._instances[key], suspect=True)
                self._instances[key] = suspect
                self._suspects[key] = now + suspect.ttl_seconds
        self._revisions[group] = revision
        self.revision = max(self._revisions.values())
        self._dirty.set()

    def _put(self, instance: Instance, revision: int) -> None:
        key = _key(instance)
        before = self._instances.get(key)
        self._suspects.pop(key, None)
        self._instances[key] = instance
        if before is None or _without_beat(before) != _without_beat(instance):
            self._tell(Change("put", instance, revision))

    def _remove(self, key: Key, revision: int, reason: str) -> None:
        self._suspects.pop(key, None)
        instance = self._instances.pop(key, None)
        if instance is not None:
            self._tell(Change("removed", instance, revision, reason))

    def _drop_suspects(self) -> None:
        now = monotonic()
        for key in [key for key, until in self._suspects.items() if until <= now]:
            self._remove(key, self.revision, "expired")
            self._dirty.set()

    def _tell(self, change: Change) -> None:
        for made in tuple(self.listening):
            made.tell(change)


def _histories(listing: Listing, group: str | None) -> dict[str, tuple[str, int]]:
    """Give each group's epoch and revision in an answer."""
    if group is not None:
        return {group: (listing.epoch, listing.revision)}
    revisions, epochs = listing.revisions or {}, listing.epochs or {}
    return {name: (epochs.get(name, ""), revision) for name, revision in revisions.items()}


def _key(instance: Instance) -> Key:
    return instance.group, instance.instance_id


def _without_beat(instance: Instance) -> Instance:
    return msgspec.structs.replace(instance, last_heartbeat="", metrics={}, performance={})
