"""What a client knows of a service: fed by a watch and by every discovery, kept on disk, and never emptied by a loss.

When the store's history may have been lost, instances that the new state does not show are kept as suspects for one lease:
whoever lives has registered again by then.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

import msgspec

from headgate.registry.model import Change, Instance
from headgate.sdk.listeners import Listener, Listening
from headgate.sdk.registry_modes import Gone, Happening, Listed, Marked, Put
from headgate.sdk.snapshot import Snapshots

WRITE_SECONDS: Final = 1.0

Key = tuple[str, str]


class Saved(msgspec.Struct, frozen=True):
    """A view on disk."""

    instances: list[Instance]
    revision: int
    epoch: str


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
        self.epoch = "0"
        self.revision = 0
        self.position: str | None = None
        self.listening: list[Listening[Change]] = []
        self.synced = asyncio.Event()
        self._name = name
        self._snapshots = snapshots
        self._instances: dict[Key, Instance] = {}
        self._suspects: dict[Key, float] = {}
        self._dirty = asyncio.Event()

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
            self.revision, self.epoch, self.known = saved.revision, saved.epoch, True

    def discovered(self, instances: list[Instance], revision: int, epoch: str) -> None:
        """Take the answer of a discovery."""
        if self.known and revision < self.revision and epoch == self.epoch:
            return  # the watch has gone on since
        lost = self.known and epoch != self.epoch
        self.epoch = epoch
        self._replace(instances, None, revision, lost=lost)
        self.stale = False

    def take(self, happening: Happening) -> None:
        """Take what a watch tells."""
        match happening:
            case Listed():
                self._replace(happening.instances, happening.group, happening.revision, lost=happening.lost)
            case Put():
                self._put(happening.instance, happening.revision)
                self.revision = max(self.revision, happening.revision)
            case Gone():
                self._remove((happening.group, happening.instance_id), happening.revision, happening.reason)
                self.revision = max(self.revision, happening.revision)
            case Marked():
                self.position = happening.position
                self.stale = False
                self.synced.set()
                return
        self._dirty.set()

    async def listen(self, listener: Listener[Change]) -> None:
        """Call a listener with every change from now on, and with what is known at once."""
        made = Listening(listener, lambda change: _key(change.instance))
        self.listening.append(made)
        if self.synced.is_set():
            for instance in self.instances():
                made.tell(Change("put", instance, self.revision))

    async def unlisten(self, listener: Listener[Change]) -> None:
        """Stop calling one listener; the others stay."""
        for made in [each for each in self.listening if each.listener == listener][:1]:
            self.listening.remove(made)
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
            saved = Saved(list(self._instances.values()), self.revision, self.epoch)
            await asyncio.to_thread(self._snapshots.write, self._name, saved)

    def _replace(self, instances: list[Instance], group: str | None, revision: int, *, lost: bool) -> None:
        before = {key for key in self._instances if group is None or key[0] == group}
        now = monotonic()
        for instance in instances:
            self._put(instance, revision)
            before.discard(_key(instance))
        for key in before:
            if not lost:
                self._remove(key, revision, "removed")
            elif key not in self._suspects:
                suspect = msgspec.structs.replace(self._instances[key], suspect=True)
                self._instances[key] = suspect
                self._suspects[key] = now + suspect.ttl_seconds
        self.revision = revision if lost else max(self.revision, revision)
        self.known = True
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


def _key(instance: Instance) -> Key:
    return instance.group, instance.instance_id


def _without_beat(instance: Instance) -> Instance:
    return msgspec.structs.replace(instance, last_heartbeat="", metrics={}, performance={})
