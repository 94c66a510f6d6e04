"""Config when the store restarts, is flushed, or fails over: clients keep what they know, and say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headgate.kit.problems import StoreUnavailable
from headgate.sdk import ContentType, Headgate
from tests.topology import Standalone, Topology, eventually

pytestmark = pytest.mark.anyio
NS = "shop"
Start = Callable[..., Topology]


class Limits(msgspec.Struct, frozen=True):
    players: int


async def put(hg: Headgate, players: int) -> int:
    content = f'{{"players": {players}}}'
    return (await hg.config.set(NS, "limits", content, content_type=ContentType.JSON)).version


async def test_a_restarted_or_failed_over_store_is_followed_again(fresh_server: Start, tmp_path: Path) -> None:
    server = fresh_server()
    async with Headgate(server.url, prefix="t", snapshot_dir=tmp_path) as hg:
        await put(hg, 1)
        live = await hg.config.live(NS, "limits", Limits)
        await eventually(lambda: not live.stale)
        await server.fail_over(f"t:config:{{{NS}/values}}:meta")

        async def published() -> bool:
            try:
                return await put(hg, 2) > 1
            except StoreUnavailable:
                return False

        await eventually(published, 20)
        await eventually(lambda: live.players == 2 and not live.stale, 20)


@pytest.mark.topology("standalone")
async def test_a_lost_history_leaves_the_last_value_and_says_so(fresh_server: Start, tmp_path: Path) -> None:
    server = fresh_server()
    assert isinstance(server, Standalone)
    async with Headgate(server.url, prefix="t", snapshot_dir=tmp_path) as hg:
        for players in (1, 2, 3):
            await put(hg, players)
        live = await hg.config.live(NS, "limits", Limits)
        other = await hg.config.live(NS, "limits", dict[str, int])
        await eventually(lambda: not live.stale)
        server.node.command("FLUSHALL")
        await eventually(lambda: live.stale, 15)
        assert (live.players, live.version, other.value) == (3, 3, {"players": 3}), "never default, never empty"
        assert not live.removed
        await put(hg, 7)
        await eventually(lambda: live.players == 7 and not live.stale, 15)


@pytest.mark.topology("standalone")
async def test_a_frozen_store_refuses_writes_quickly_and_reads_stay(fresh_server: Start, tmp_path: Path) -> None:
    server = fresh_server()
    assert isinstance(server, Standalone)
    async with Headgate(server.url, prefix="t", snapshot_dir=tmp_path) as hg:
        await put(hg, 1)
        live = await hg.config.live(NS, "limits", Limits)
        server.node.pause()
        with pytest.raises(StoreUnavailable):
            await put(hg, 2)
        assert live.players == 1
        server.node.resume()

        async def back() -> bool:
            try:
                return await put(hg, 3) > 1
            except StoreUnavailable:
                return False

        await eventually(back, 15)
        await eventually(lambda: live.players == 3 and not live.stale, 15)
