"""The console in a browser: sign in, run a queue with the mouse, and nobody overwrites anybody unseen."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from tests.browser.conftest import Place


@pytest.fixture
async def page(browser: Browser, place: Place) -> Page:
    context = await browser.new_context(bypass_csp=True)
    opened = await context.new_page()
    await sign_in(opened, place, place.gateway.token)
    return opened


@pytest.fixture
async def queue(place: Place) -> AsyncIterator[str]:
    name = f"c{secrets.token_hex(4)}"
    yield name
    async with place.admin() as admin:
        await admin.delete(f"/api/admin/queues/{name}")


async def sign_in(page: Page, place: Place, token: str) -> None:
    await page.goto(f"{place.gateway.url}/console")
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Queues")).to_be_visible()


async def make(place: Place, queue: str, **policy: object) -> None:
    async with place.admin() as admin:
        answer = await admin.put(f"/api/admin/queues/{queue}", json={"capacity": 0, **policy})
        assert answer.status_code in (200, 201), answer.text


async def open_queue(page: Page, place: Place, queue: str) -> None:
    await page.goto(f"{place.gateway.url}/console#/queues/{queue}")
    await expect(page.locator(".figure").first).to_be_visible()


async def test_a_wrong_token_is_told_and_a_right_one_is_kept_in_an_http_only_cookie(
    browser: Browser, place: Place
) -> None:
    page = await browser.new_page()
    await page.goto(f"{place.gateway.url}/console")
    await page.get_by_label("Token").fill("not a token")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_have_text("This token is not known here.")
    await sign_in(page, place, place.gateway.token)
    cookies = {cookie["name"]: cookie for cookie in await page.context.cookies()}
    assert cookies["headgate-console"]["httpOnly"]
    assert cookies["headgate-console"]["sameSite"] == "Strict"
    assert place.gateway.token not in str(cookies)
    await page.get_by_role("button", name="Sign out").click()
    await page.reload()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_a_queue_is_created_and_its_policy_changed_with_the_mouse(page: Page, place: Place, queue: str) -> None:
    await page.get_by_label("Name").fill(queue)
    await page.get_by_label("Seats").fill("3")
    await page.get_by_role("button", name="Create queue").click()
    await expect(page.locator(".figure").first).to_be_visible()
    await page.get_by_label("Admissions a second").fill("7.5")
    await page.get_by_role("button", name="Save policy").click()
    await expect(page.locator("#toasts")).to_contain_text("in force")
    async with place.admin() as admin:
        view = (await admin.get(f"/api/admin/queues/{queue}")).json()
    assert view["ratePerSecond"] == 7.5
    assert view["capacity"] == 3
    await page.get_by_label("Message to those who wait").fill("x" * 600)
    await page.get_by_role("button", name="Save policy").click()
    await expect(page.locator("form [role=alert]").first).to_contain_text("message")


async def test_the_levers_do_what_they_say(page: Page, place: Place, queue: str) -> None:
    await make(place, queue, capacity=10, ratePerSecond=0)
    async with place.admin() as admin:
        entry = await admin.post("/api/queue/entry", json={"nickname": "<b>ryan</b>", "queue": queue})
        assert entry.status_code in (200, 201)
    await open_queue(page, place, queue)
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("h1 .tag")).to_have_text("paused")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.locator("h1 .tag")).to_have_text("queueing")
    await page.get_by_role("button", name="Admit now").click()
    await expect(page.locator(".figure", has_text="Called")).to_contain_text("1", timeout=10_000)
    await page.get_by_role("button", name="Drain").click()
    await page.locator("dialog").get_by_role("button", name="Drain").click()
    await expect(page.locator("h1 .tag")).to_have_text("draining")
    await page.get_by_role("button", name="Reset").click()
    dialog = page.locator("dialog")
    await expect(dialog.get_by_role("button", name="Reset")).to_be_disabled()
    await dialog.get_by_role("textbox").fill(queue)
    await dialog.get_by_role("button", name="Reset").click()
    await expect(page.locator(".figure", has_text="Generation")).to_contain_text("2")
    await expect(page.get_by_role("cell", name="reset")).to_be_visible(timeout=20_000)


async def test_two_admins_cannot_overwrite_each_other_unseen(page: Page, place: Place, queue: str) -> None:
    await make(place, queue)
    await open_queue(page, place, queue)
    await page.get_by_label("At most a tick").fill("50")
    async with place.admin() as admin:
        await admin.put(f"/api/admin/queues/{queue}", json={"batch": 60})
    await page.get_by_role("button", name="Save policy").click()
    await expect(page.locator("main")).to_contain_text("Somebody else changed this policy")
    async with place.admin() as admin:
        assert (await admin.get(f"/api/admin/queues/{queue}")).json()["batch"] == 60


async def test_another_admins_change_appears_by_itself(page: Page, place: Place, queue: str) -> None:
    await make(place, queue)
    await open_queue(page, place, queue)
    async with place.admin() as admin:
        await admin.put(f"/api/admin/queues/{queue}", json={"batch": 61})
    await expect(page.get_by_label("At most a tick")).to_have_value("61", timeout=10_000)


async def test_a_reader_sees_everything_and_changes_nothing(browser: Browser, place: Place, queue: str) -> None:
    await make(place, queue)
    async with place.admin() as admin:
        made = await admin.post("/api/admin/tokens", json={"name": f"r-{queue}", "role": "read"})
    page = await browser.new_page()
    await sign_in(page, place, made.json()["token"])
    await open_queue(page, place, queue)
    await expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    await expect(page.get_by_role("button", name="Save policy")).to_be_disabled()
    await expect(page.get_by_role("link", name="Tokens")).to_have_count(0)
    refused = await page.evaluate(
        "queue => fetch(`/api/admin/queues/${queue}/pause`, {method: 'POST', headers: {'X-Headgate-Console': '1'}})"
        ".then((answer) => answer.status)",
        queue,
    )
    assert refused == 403


async def test_a_request_that_is_not_the_consoles_own_is_refused(page: Page, place: Place, queue: str) -> None:
    await make(place, queue)
    without_mark = await page.evaluate(
        "queue => fetch(`/api/admin/queues/${queue}/pause`, {method: 'POST'}).then((answer) => answer.status)", queue
    )
    assert without_mark == 403
    cookies = {cookie["name"]: cookie["value"] for cookie in await page.context.cookies()}
    async with place.admin() as admin:
        foreign = await admin.post(
            f"/api/admin/queues/{queue}/pause",
            headers={
                "X-API-Token": "",
                "Cookie": f"headgate-console={cookies['headgate-console']}",
                "X-Headgate-Console": "1",
                "Origin": "https://evil.example",
            },
        )
        assert foreign.status_code in (401, 403)
        assert not (await admin.get(f"/api/admin/queues/{queue}")).json()["paused"]


@pytest.mark.parametrize("part", ["queues", "services", "config", "relay", "locks", "tokens", "system"])
async def test_every_part_opens_at_phone_width_and_axe_finds_nothing(page: Page, place: Place, part: str) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    await page.set_viewport_size({"width": 360, "height": 740})
    await page.goto(f"{place.gateway.url}/console#/{part}")
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    await expect(page.locator("main .error:not(:empty)")).to_have_count(0)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert errors == []
