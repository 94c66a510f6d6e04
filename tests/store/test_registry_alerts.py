"""Alerts of mass-expiry protection and health, both when they come and when they pass."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headgate.cli.processes.live_settings import live_settings
from headgate.config.config import Config
from headgate.config.live_settings import DEFINITIONS, NAMESPACE
from headgate.config.model import ContentType, Draft
from headgate.kit.logs import Level
from headgate.registry.alerts import Alert, Alerts, AlertTarget, body_of
from headgate.registry.health_checks import HealthChecker
from headgate.registry.model import InstanceBeat, Record
from headgate.registry.probes import Prober
from headgate.registry.registry import Registry
from headgate.registry.sweep import Sweeper
from headgate.store import Store
from tests.store.test_registry_health import LOCAL, NS, check_of, site, steps
from tests.topology import eventually, free_port

pytestmark = pytest.mark.anyio
TARGET = AlertTarget("http://127.0.0.1:1/", "generic")


def raised(alerts: Alerts) -> list[tuple[str, bool]]:
    """Give the kinds of the alerts in line, and whether each says that it is over."""
    return [(alert.kind, alert.resolved) for alert in alerts._waiting]


async def test_protection_is_told_when_it_begins_and_when_it_ends(store: Store) -> None:
    registry, alerts = Registry(store), Alerts(TARGET)
    sweeper, thing = Sweeper(registry, alerts), registry.service(NS, "game", "g")
    names = [f"i{number}" for number in range(10)]
    for name in names:
        await registry.register(NS, Record(type="game", group="g", instance_id=name, ttl_seconds=5))
    store.advance_clock(5500)
    await sweeper.sweep(thing)
    assert raised(alerts) == [("protection", False)]
    assert len((await registry.discover(NS, "game", "g")).instances) == 10
    await asyncio.gather(*(registry.beat(thing, InstanceBeat(name)) for name in names))
    await sweeper.sweep(thing)
    assert raised(alerts) == [("protection", False), ("protection", True)]
    assert len({alert.key for alert in alerts._waiting}) == 1, "the second ends the first"


@pytest.mark.parametrize("ephemeral", [True, False])
async def test_a_death_is_told_and_so_is_the_return_once_each(store: Store, ephemeral: bool) -> None:
    registry, alerts = Registry(store), Alerts(TARGET)
    sweepers, thing = [Sweeper(registry, alerts), Sweeper(registry, alerts)], registry.service(NS, "game", "g")
    records = [
        Record(type="game", group="g", instance_id=name, ttl_seconds=ttl, ephemeral=ephemeral)
        for name, ttl in (("a", 5), ("b", 5), ("c", 10))
    ]

    async def sweep() -> None:
        for sweeper in sweepers:
            await sweeper.sweep(thing)

    for record in records:
        await registry.register(NS, record)
    store.advance_clock(5500)
    await sweep()
    assert sorted(alert.text for alert in alerts._waiting) == [
        "a of game/g stopped beating",
        "b of game/g stopped beating",
    ]
    died = {alert.key for alert in alerts._waiting}
    alerts._waiting.clear()
    await sweep()
    assert raised(alerts) == []
    await registry.register(NS, records[1])
    await sweep()
    assert [(alert.kind, alert.text, alert.resolved) for alert in alerts._waiting] == [
        ("death", "b of game/g is back", True)
    ]
    assert alerts._waiting[0].key in died
    for seconds in range(6, 12):
        store.advance_clock(seconds * 1000)
        await registry.register(NS, records[2])
        await sweep()
    assert raised(alerts) == [("death", True), ("death", False)], "and it may die again"


async def test_of_many_deaths_at_once_some_are_named_and_the_others_counted(store: Store) -> None:
    registry, alerts = Registry(store), Alerts(TARGET)
    for number in range(112):
        ttl = 5 if number < 12 else 300
        await registry.register(NS, Record(type="game", group="g", instance_id=f"i{number}", ttl_seconds=ttl))
    store.advance_clock(5500)
    await Sweeper(registry, alerts).sweep(registry.service(NS, "game", "g"))
    assert len(alerts._waiting) == 11
    assert alerts._waiting[-1].text == "2 more of game/g stopped beating"


async def test_whoever_was_removed_as_unhealthy_and_is_back_is_told(store: Store) -> None:
    registry, alerts = Registry(store), Alerts(TARGET)
    checker, sweeper = HealthChecker(registry, Prober(LOCAL), alerts), Sweeper(registry, alerts)
    async with site() as web:
        web.status = 500
        check = msgspec.structs.replace(check_of(web.port), remove_after_seconds=1)
        record = Record(type="game", group="g", instance_id="a", check=check)
        await registry.register(NS, record)

        async def told() -> bool:
            return ("death", False) in raised(alerts)

        await steps(checker, told)
        web.status = 200
        await registry.register(NS, record)
        await sweeper.sweep(registry.service(NS, "game", "g"))
    assert raised(alerts) == [("health", False), ("death", False), ("death", True)]
    assert len({alert.key for alert in alerts._waiting}) == 1, "the last ends the others"


async def test_health_is_told_when_it_goes_and_when_it_is_back(store: Store) -> None:
    registry, alerts = Registry(store), Alerts(TARGET)
    checker = HealthChecker(registry, Prober(LOCAL), alerts)
    async with site() as web:
        web.status = 500
        await registry.register(NS, Record(type="game", group="g", instance_id="a", check=check_of(web.port)))

        async def told(kind: tuple[str, bool]) -> bool:
            return kind in raised(alerts)

        await steps(checker, lambda: told(("health", False)))
        web.status = 200
        await steps(checker, lambda: told(("health", True)))
    assert raised(alerts) == [("health", False), ("health", True)]


async def test_the_target_is_changed_live_and_given_back(store: Store) -> None:
    config, alerts = Config(store, definitions={NAMESPACE: DEFINITIONS}), Alerts(TARGET)
    following = asyncio.ensure_future(live_settings(config, usual=Level.INFO, alerts=alerts).run())

    async def publish(content: str | None) -> None:
        draft = Draft("alerts/target", content, ContentType.JSON)
        await config.publish(NAMESPACE, [draft], author="ann")

    await eventually(lambda: config.feed.followers == 1)
    await publish('{"url": "https://hooks.example/x", "format": "slack"}')
    await eventually(lambda: alerts.target == AlertTarget("https://hooks.example/x", "slack"), 3)
    await publish(None)
    await eventually(lambda: alerts.target == TARGET, 3)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_an_address_that_is_none_costs_one_alert_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.registry.alerts.FIRST_PAUSE", 0.01)
    async with site() as hook:
        alerts = Alerts(AlertTarget("http://[::1"))
        sending = asyncio.ensure_future(alerts.run())
        alerts.raise_alert("death", "lost", namespace=NS, service="game/g", key="k")
        await eventually(lambda: not alerts._waiting)
        alerts.target = AlertTarget(f"http://127.0.0.1:{hook.port}/")
        alerts.raise_alert("death", "told", namespace=NS, service="game/g", key="k")
        await eventually(lambda: any(b"told" in body for body in hook.bodies))
        assert not sending.done()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_without_a_target_nothing_is_kept() -> None:
    alerts = Alerts()
    alerts.raise_alert("death", "x", namespace="default", service="game/g", key="k")
    assert raised(alerts) == []


async def test_an_alert_that_nobody_takes_holds_up_the_next_only_for_its_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.registry.alerts.FIRST_PAUSE", 0.01)
    alerts = Alerts(AlertTarget(f"http://127.0.0.1:{free_port()}/"))
    for number in range(3):
        alerts.raise_alert("death", f"{number}", namespace="default", service="game/g", key=f"k{number}")
    sending = asyncio.ensure_future(alerts.run())
    async with asyncio.timeout(20):
        while alerts._waiting:
            await asyncio.sleep(0.05)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


def test_pagerduty_resolves_what_it_triggered() -> None:
    alert = Alert("protection", "held", "default", "game/g", "2026-01-01T00:00:00Z", True, "key")
    body = body_of(alert, AlertTarget("https://events.pagerduty.com/v2/enqueue", "pagerduty", "routing"))
    assert isinstance(body, dict)
    assert (body["event_action"], body["dedup_key"]) == ("resolve", "key")
    assert body["payload"]["severity"] == "critical"
    assert set(body["payload"]) >= {"summary", "source", "severity"}
