"""Jobs: requests that are accepted now and sent later, kept in the store until they are answered.

A job lives in its upstream's slot: its order and state in a hash, the list of all in a stream. Its place in the user's
line is fixed when it is accepted, so jobs and waiting requests share one line. Runners take the first few jobs of each
user, and users in turn; a full runner gives back jobs that must wait in exchange for jobs that can be sent. So no user's
backlog delays another user.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, cast

import msgspec

from headgate.kit.ids import new_ulid
from headgate.relay.job_listing import JobListing
from headgate.relay.model import JobState, Order, upstream_name
from headgate.relay.problems import JobSending, JobUnknown
from headgate.relay.settings import RelaySettings
from headgate.relay.upstreams import Upstreams
from headgate.relay.wire import JobView, Response
from headgate.store import Store, script
from headgate.store.client.link import Reply

JOB_PUT = script(__package__, "job_put")
JOB_LOOK = script(__package__, "job_look")
JOB_NEXT = script(__package__, "job_next")
JOB_TAKE = script(__package__, "job_take")
JOB_SEND = script(__package__, "job_send")
JOB_REFUSED = script(__package__, "job_refused")
JOB_GIVE_BACK = script(__package__, "job_give_back")
JOB_END = script(__package__, "job_end")
JOB_OVERDUE = script(__package__, "job_overdue")
JOB_SWEEP = script(__package__, "job_sweep")

LISTED: Final = 200
AGAIN_MS: Final = 5_000  # until a user's jobs are checked again without a known change

_encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(Order).decode
_decode_response = msgspec.json.Decoder(Response).decode


class TakenJob(msgspec.Struct, frozen=True):
    """A job that a runner has taken to send it."""

    state: JobState
    order: Order
    place: int
    attempts: int
    age_ms: int
    attempt: str


class NextJobs(msgspec.Struct, frozen=True):
    """The reply of `job_next`: ids of the user's jobs that this runner holds, the shortest wait of the user's first job in
    ms, and how many jobs that no runner holds could be sent soon."""

    ids: list[str]
    wait_ms: int
    ready: int


class JobQueue:
    """Accepts, shows, lists and cancels jobs, and changes their state for the runners that send them."""

    def __init__(self, store: Store, upstreams: Upstreams, settings: RelaySettings) -> None:
        self._store = store
        self._upstreams = upstreams
        self._settings = settings

    async def submit(self, upstream: str, order: Order, *, id: str | None = None) -> str:
        """Accept a job and return its id, which contains its upstream."""
        view = await self._upstreams.get(upstream)
        id = id or f"{new_ulid()}.{upstream}"
        await self._store.run(
            JOB_PUT, self._upstreams.thing(upstream), id, _encode(order), order.user, order.units, order.wait_ms,
            view.policy.max_waiting, self._settings.most_jobs, user=order.user,
        )  # fmt: skip
        return id

    async def get(self, id: str) -> JobView:
        """Return a job's state, and while it waits its position and estimated time."""
        upstream = upstream_of(id)
        thing = self._upstreams.thing(upstream)
        fields = [f"{id}:{name}" for name in ("state", "place", "attempts", "reason", "response", "order")]
        reply = await self._store.read(thing, "HMGET", thing.key("orders"), *fields)
        state, place, attempts, reason, response, order = cast("list[bytes | None]", reply)
        if state is None:
            raise JobUnknown(f"There is no job {id}; results are kept for a while only.")
        view = JobView(
            id=id,
            state=JobState(state.decode()),
            upstream=upstream,
            attempts=int(attempts or 0),
            reason=reason.decode() if reason else None,
            response=_decode_response(response) if response else None,
        )
        if view.state is JobState.WAITING and order is not None:
            request = _decode_order(order)
            _, position, wait = await self._upstreams.figures(upstream, request.user, int(place or 0), request.units)
            eta = datetime.fromtimestamp(self._store.now(thing) + wait / 1000, UTC)
            view = msgspec.structs.replace(view, position=position, eta=f"{eta:%Y-%m-%dT%H:%M:%SZ}")
        return view

    async def page(
        self, upstream: str, state: JobState | None = None, *, limit: int = LISTED, page: str | None = None
    ) -> tuple[Sequence[JobView], str | None]:
        """Return one page of an upstream's open and lately ended jobs, and the next page's token; None on the last page."""
        listing = JobListing(self._store, self._upstreams.thing(upstream_name(upstream)), self.get)
        return await listing.page(state, limit, page)

    async def list(self, upstream: str, state: JobState | None = None) -> Sequence[JobView]:
        """List all open and lately ended jobs of an upstream; a job that ends meanwhile is listed in its final state."""
        found: dict[str, JobView] = {}
        page = None
        while True:
            views, page = await self.page(upstream, state, page=page)
            found.update((view.id, view) for view in views)
            if page is None:
                return [*found.values()]

    async def cancel(self, id: str) -> JobState:
        """Cancel a waiting job; a job that has ended stays as it is."""
        reply = await self._end_waiting(id, JobState.CANCELLED, "cancelled by its owner")
        if not reply:
            raise JobUnknown(f"There is no job {id}.")
        return JobState(reply)

    async def end(
        self, id: str, user: str, holder: str, state: JobState, reason: str, response: Response | None = None
    ) -> str:
        """Write the final state of a job; return the state it has then."""
        reply = await self._store.run(
            JOB_END, self._upstreams.thing(upstream_of(id)), id, user, holder, state, reason,
            msgspec.json.encode(response) if response is not None else b"",
            self._settings.job_keep_seconds * 1000, user=user,
        )  # fmt: skip
        return cast("bytes", reply).decode()

    async def _end_waiting(self, id: str, state: JobState, reason: str) -> str:
        """End a job that is not being sent; raises JobSending if it is."""
        thing = self._upstreams.thing(upstream_of(id))
        order = cast("bytes | None", await self._store.read(thing, "HGET", thing.key("orders"), f"{id}:order"))
        user = _decode_order(order).user if order is not None else ""  # without an order it has ended
        return await self.end(id, user, "", state, reason)

    async def due(self, upstream: str, holder: str, most: int) -> Sequence[str]:
        """Record a runner's heartbeat, and return users whose jobs are due for a check."""
        reply = await self._store.run(JOB_LOOK, self._upstreams.thing(upstream), holder, most)
        return [user.decode() for user in cast("list[bytes]", reply)]

    async def next(self, upstream: str, user: str, holder: str, most: int) -> NextJobs:
        """Become the holder of at most `most` more of a user's next jobs; return all that this runner holds."""
        thing = self._upstreams.thing(upstream)
        reply = cast("list[Reply]", await self._store.run(JOB_NEXT, thing, user, holder, most, AGAIN_MS, user=user))
        if not reply:
            return NextJobs([], 0, 0)
        wait, ready, *ids = reply
        return NextJobs([cast("bytes", id).decode() for id in ids], int(cast("bytes", wait)), cast("int", ready))

    async def take(self, id: str, holder: str) -> TakenJob | None:
        """Become the holder of a job; None if it has ended."""
        reply = await self._store.run(JOB_TAKE, self._upstreams.thing(upstream_of(id)), id, holder)
        if not reply:
            return None
        state, order, place, attempts, age_ms, attempt = cast("list[bytes]", reply)
        return TakenJob(
            JobState(state.decode()), _decode_order(order), int(place), int(attempts), int(age_ms), attempt.decode()
        )

    async def mark_sending(self, id: str, holder: str, attempt: str) -> int:
        """Mark a job as being sent; raises JobTaken if another runner holds it or it has ended."""
        thing = self._upstreams.thing(upstream_of(id))
        return cast("int", await self._store.run(JOB_SEND, thing, id, holder, attempt))

    async def mark_refused(self, id: str, holder: str, attempt: str) -> None:
        """Mark a job as refused by the upstream, so that it waits again."""
        await self._store.run(JOB_REFUSED, self._upstreams.thing(upstream_of(id)), id, holder, attempt)

    async def give_back(self, id: str, user: str, holder: str, *, at_once: bool) -> None:
        """Give up a held job that is not being sent; other runners look for it now, or when its turn comes."""
        thing = self._upstreams.thing(upstream_of(id))
        await self._store.run(JOB_GIVE_BACK, thing, id, user, holder, int(at_once), user=user)

    async def abandon(self, upstream: str) -> None:
        """Fail the waiting jobs of an upstream that was taken out of service."""
        thing = self._upstreams.thing(upstream)
        entries = await self._store.read(thing, "XRANGE", thing.key("jobs"), "-", "+", "COUNT", LISTED)
        for _, id in entries_of(entries):
            with suppress(JobSending):
                await self._end_waiting(id, JobState.FAILED, "its upstream was taken out of service")

    async def sweep(self, upstream: str) -> None:
        """Delete old results, and fail jobs whose turn did not come before their deadline."""
        thing = self._upstreams.thing(upstream)
        await self._store.run(JOB_SWEEP, thing, LISTED)
        for id in cast("list[bytes]", await self._store.run(JOB_OVERDUE, thing, LISTED)):
            with suppress(JobSending):
                await self._end_waiting(id.decode(), JobState.FAILED, "its turn did not come before its deadline")


def upstream_of(id: str) -> str:
    """Return the upstream that a job's id contains."""
    ulid, _, upstream = id.partition(".")
    if len(ulid) != 26 or not ulid.isalnum() or not upstream:
        raise JobUnknown(f"{id[:160]!r} is not the id of a job.")
    return upstream_name(upstream)


def entries_of(reply: Reply) -> list[tuple[str, str]]:
    """Decode a range of the stream into pairs of entry and job id; a deleted entry has no fields."""
    found = []
    for entry, fields in cast("list[tuple[bytes, list[bytes] | None]]", reply or []):
        if fields:
            found.append((entry.decode(), fields[1].decode()))
    return found


def response_of(status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, truncated: bool) -> Response:
    """Encode an upstream's answer as a job's result."""
    named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    try:
        return Response(status, named, body=body.decode(), truncated=truncated)
    except UnicodeDecodeError:
        return Response(status, named, body_base64=base64.b64encode(body).decode(), truncated=truncated)
