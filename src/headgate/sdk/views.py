"""What a client knows of a service: fed by a watch and by every discovery, kept on disk, and never emptied by a loss.

When the store's history may have been lost, instances that the new state does not show are kept as suspects for one lease:
whoever lives has registered again by then. A suspect is dropped by the first bookmark or answer after that time, not by the
time alone: the watch may have been cut off meanwhile. A loss shows in the epoch, which every state and every bookmark names:
a position alone may fall into the new history by chance, when the store's clock was set back before the loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
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

    def __init__(self, name: str, group: str | None, snapshots: Snapshots[Saved] | None) -> None:
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
        self._group = group
        self._snapshots = snapshots
        self._instances: dict[Key, Instance] = {}
        self._suspects: dict[Key, float] = {}
        self._dirty = asyncio.Event()
        self._closed = False

    def instances(self) -> list[Instance]:
        """Give all instances known now."""
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

    def is_of(self, listing: Listing) -> bool:
        """Tell whether an answer, whatever it chose, is of the very state that is known here."""
        histories = _histories(listing, self._group)
        return self.known and all(
            (self._epochs.get(name), self._revisions.get(name)) == at for name, at in histories.items()
        ) and {name for name, _ in self._instances} <= histories.keys()  # fmt: skip

    def discovered(self, listing: Listing) -> bool:
        """Take the answer of a discovery, each group for itself; tell whether it brought anything new."""
        before, known = set(self._instances), self.is_of(listing)
        by_group: dict[str, list[Instance]] = {}
        for instance in listing.instances:
            by_group.setdefault(instance.group, []).append(instance)
        histories = _histories(listing, self._group)
        for name, (epoch, revision) in histories.items():
            if epoch == self._epochs.get(name) and revision < self._revisions.get(name, 0):
                continue  # the watch has gone on since
            lost = self._lost(name, epoch)
            self._epochs[name] = epoch
            self._replace(by_group.get(name, []), name, revision, lost=lost)
        self._doubt_groups(histories.keys(), listing.revision)
        self.known, self.stale = True, False
        return not known or before != self._instances.keys()

    def take(self, happening: Happening) -> bool:
        """Take what a watch tells; False if it must begin anew, with the present state."""
        match happening:
            case Listed():
                lost = happening.lost
                if happening.epoch is not None:
                    lost = lost or self._lost(happening.group, happening.epoch)
                    self._epochs[happening.group] = happening.epoch
                self._replace(happening.instances, happening.group, happening.revision, lost=lost)
            case Put():
                self._put(happening.instance, happening.revision)
                self._advance(happening.instance.group, happening.revision)
            case Gone():
                self._remove((happening.group, happening.instance_id), happening.revision, happening.reason)
                self._advance(happening.group, happening.revision)
            case Marked():
                if self._group is not None and happening.epoch is not None:
                    if self._epochs.get(self._group, "0") not in ("0", happening.epoch):
                        # Resumed in a history that is not the one it was of; what this one lacks is not told.
                        self.position, self.stale = None, True
                        return False
                    self._epochs[self._group] = happening.epoch
                if happening.groups is not None:
                    self._doubt_groups(happening.groups, self.revision)
                self.position = happening.position
                self.known, self.stale, self.refusal = True, False, None
                self.heard.set()
                if happening.current:
                    self._drop_suspects()
                return True
        self._dirty.set()
        return True

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
        """Write the snapshot after changes."""
        while True:
            await self._dirty.wait()
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

    def _doubt_groups(self, told: Set[str], revision: int) -> None:
        """Suspect the instances of groups that were not told: one that has instances is, unless the list of groups was lost."""
        for name in {name for name, _ in self._instances} - told:
            known = {key for key in self._instances if key[0] == name}
            self._replace([], name, revision, lost=not known <= self._suspects.keys())

    def _replace(self, instances: list[Instance], group: str, revision: int, *, lost: bool) -> None:
        before = {key for key in self._instances if key[0] == group}
        now = monotonic()
        for instance in instances:
            self._put(instance, revision)
            before.discard(_key(instance))
        for key in before:
            if lost:
                suspect = msgspec.structs.replace(self._instances[key], suspect=True)
                self._instances[key] = suspect
                self._suspects[key] = now + suspect.ttl_seconds
            elif key not in self._suspects:
                self._remove(key, revision, "removed")
            elif (
                self._suspects[key] <= now and self.position is None
            ):  # else the watch drops it, which knows of outages
                self._remove(key, revision, "expired")
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
