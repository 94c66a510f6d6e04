"""The last known instances of a service: updated by a watch and by every discovery, saved on disk, and kept after a loss.

When the store's history may have been lost, instances that are missing in the new state are kept as suspects for one lease:
those that live have registered again by then. A suspect is dropped by the first bookmark or discovery after that time, not by
the time alone: the watch may have been cut off meanwhile. A loss shows in the epoch, which every state and every bookmark names:
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
from headgate.sdk.backends.registry import Gone, Listed, Marked, Put, RegistryEvent
from headgate.sdk.listeners import Listener, ListenerTask
from headgate.sdk.snapshot import Snapshots

WRITE_SECONDS: Final = 1.0

Key = tuple[str, str]


class SavedView(msgspec.Struct, frozen=True):
    """The contents of a snapshot file."""

    instances: list[Instance]
    revision: int
    epochs: dict[str, str] = {}


class InstanceList(list[Instance]):
    """Instances with their revision; `stale` says that they are the last known ones, and the present ones may differ."""

    def __init__(self, instances: list[Instance], *, stale: bool, revision: int) -> None:
        super().__init__(instances)
        self.stale = stale
        self.revision = revision


class ServiceView:
    """The last known state of one service, or of all groups of a type."""

    def __init__(self, name: str, group: str | None, snapshots: Snapshots[SavedView] | None) -> None:
        self.known = False
        self.stale = True
        self.revision = 0
        self.position: str | None = None
        self.refusal: HeadgateError | None = None
        self.listeners: list[ListenerTask[Change]] = []
        self.updated = asyncio.Event()
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

    def known_list(self) -> InstanceList:
        """Give the instances with their revision and whether they are stale."""
        return InstanceList(self.instances(), stale=self.stale, revision=self.revision)

    def load(self) -> None:
        """Start from the snapshot on disk, if there is one; this blocks."""
        saved = self._snapshots.read(self._name) if self._snapshots and not self.known else None
        if saved is not None:
            self._instances = {_key(each): each for each in saved.instances}
            self.revision, self._epochs, self.known = saved.revision, dict(saved.epochs), True

    def is_of(self, listing: Listing) -> bool:
        """Tell whether a list, filtered or not, is of exactly the state that is known here."""
        histories = _histories(listing, self._group)
        return self.known and all(
            (self._epochs.get(name), self._revisions.get(name)) == at for name, at in histories.items()
        ) and {name for name, _ in self._instances} <= histories.keys()  # fmt: skip

    def discovered(self, listing: Listing) -> bool:
        """Take the list of a discovery, group by group; tell whether it changed the view."""
        before, known = set(self._instances), self.is_of(listing)
        by_group: dict[str, list[Instance]] = {}
        for instance in listing.instances:
            by_group.setdefault(instance.group, []).append(instance)
        histories = _histories(listing, self._group)
        for name, (epoch, revision) in histories.items():
            if epoch == self._epochs.get(name) and revision < self._revisions.get(name, 0):
                continue  # the watch has delivered a newer state
            lost = self._lost(name, epoch)
            self._epochs[name] = epoch
            self._replace(by_group.get(name, []), name, revision, lost=lost)
        self._suspect_missing_groups(histories.keys(), listing.revision)
        self.known, self.stale = True, False
        return not known or before != self._instances.keys()

    def take(self, event: RegistryEvent) -> bool:
        """Take an event of a watch; False if the watch must be opened again without a position."""
        match event:
            case Listed():
                lost = event.lost
                if event.epoch is not None:
                    lost = lost or self._lost(event.group, event.epoch)
                    self._epochs[event.group] = event.epoch
                self._replace(event.instances, event.group, event.revision, lost=lost)
            case Put():
                self._put(event.instance, event.revision)
                self._advance(event.instance.group, event.revision)
            case Gone():
                self._remove((event.group, event.instance_id), event.revision, event.reason)
                self._advance(event.group, event.revision)
            case Marked():
                if self._group is not None and event.epoch is not None:
                    if self._epochs.get(self._group, "0") not in ("0", event.epoch):
                        # The position was of another history, so removals are missing from the events that follow it.
                        self.position, self.stale = None, True
                        return False
                    self._epochs[self._group] = event.epoch
                if event.groups is not None:
                    self._suspect_missing_groups(event.groups, self.revision)
                self.position = event.position
                self.known, self.stale, self.refusal = True, False, None
                self.updated.set()
                if event.current:
                    self._drop_suspects()
                return True
        self._dirty.set()
        return True

    def refused(self, error: HeadgateError) -> bool:
        """Note that the watch was refused; True if its position may be the reason, and it is opened again without one."""
        if self.position is not None:
            self.position = None
            return True
        self.refusal = error
        self.updated.set()
        return False

    async def wait_until_known(self, seconds: float) -> None:
        """Wait until a state is known; raises the refusal of the watch, or StoreUnavailable after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.known and self.refusal is None:
                    self.updated.clear()
                    await self.updated.wait()
        if not self.known:
            raise self.refusal or StoreUnavailable("Nobody could be asked, and nothing is known from before.")

    async def listen(self, listener: Listener[Change]) -> None:
        """Call a listener with the known instances now, and then with every change."""
        if self._closed:
            raise Closed
        made = ListenerTask(listener, lambda change: _key(change.instance))
        self.listeners.append(made)
        if self.known:
            for instance in self.instances():
                made.put(Change("put", instance, self.revision))

    async def unlisten(self, listener: Listener[Change]) -> None:
        """Stop calling one listener; the others stay."""
        for made in [each for each in self.listeners if each.listener == listener][:1]:
            self.listeners.remove(made)
            await made.stop()

    async def close(self) -> None:
        """Stop all listeners, and raise Closed in calls that wait for the first state."""
        self._closed = True
        self.refusal = Closed()
        self.updated.set()
        listening, self.listeners = self.listeners, []
        for made in listening:
            await made.stop()

    async def keep_saving(self) -> None:
        """Write the snapshot after changes, at most once a second, until cancelled."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self.save()
            await asyncio.sleep(WRITE_SECONDS)

    async def save(self) -> None:
        """Write the snapshot now."""
        if self._snapshots is not None and self.known:
            saved = SavedView(list(self._instances.values()), self.revision, dict(self._epochs))
            await asyncio.to_thread(self._snapshots.write, self._name, saved)

    def _advance(self, group: str, revision: int) -> None:
        self.revision = max(self.revision, revision)
        self._revisions[group] = max(self._revisions.get(group, 0), revision)

    def _lost(self, group: str, epoch: str) -> bool:
        """Tell whether a group has a new history; without a known epoch the revision shows it, since epochs are revisions too."""
        if group in self._epochs:
            return epoch != self._epochs[group]
        return self._revisions.get(group, 0) > 0 and (epoch == "0" or int(epoch) > self._revisions[group])

    def _suspect_missing_groups(self, present: Set[str], revision: int) -> None:
        """Make suspects of instances whose group is missing: a group with instances is listed, unless the list was lost."""
        for name in {name for name, _ in self._instances} - present:
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
            elif self._suspects[key] <= now:
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
            self._notify(Change("put", instance, revision))

    def _remove(self, key: Key, revision: int, reason: str) -> None:
        self._suspects.pop(key, None)
        instance = self._instances.pop(key, None)
        if instance is not None:
            self._notify(Change("removed", instance, revision, reason))

    def _drop_suspects(self) -> None:
        now = monotonic()
        for key in [key for key, until in self._suspects.items() if until <= now]:
            self._remove(key, self.revision, "expired")
            self._dirty.set()

    def _notify(self, change: Change) -> None:
        for made in tuple(self.listeners):
            made.put(change)


def _histories(listing: Listing, group: str | None) -> dict[str, tuple[str, int]]:
    """Give each group's epoch and revision in a list."""
    if group is not None:
        return {group: (listing.epoch, listing.revision)}
    revisions, epochs = listing.revisions or {}, listing.epochs or {}
    return {name: (epochs.get(name, ""), revision) for name, revision in revisions.items()}


def _key(instance: Instance) -> Key:
    return instance.group, instance.instance_id


def _without_beat(instance: Instance) -> Instance:
    return msgspec.structs.replace(instance, last_heartbeat="", metrics={}, performance={})
