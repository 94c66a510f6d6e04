"""The waiting page as visitors see it: they wait, refresh, lose the network, get their turn and land where they wanted."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from headgate.gate.page import LANGUAGES
from tests.browser.conftest import Place
from tests.topology import eventually


@pytest.fixture
async def queue(place: Place) -> AsyncIterator[str]:
    name = f"q{secrets.token_hex(4)}"
    yield name
    async with place.admin() as admin:
        await admin.delete(f"/api/admin/queues/{name}")


async def configure(place: Place, queue: str, **policy: object) -> None:
    async with place.admin() as admin:
        body = {"paths": [f"/{queue}/**"], **policy}
        answer = await admin.put(f"/api/admin/queues/{queue}", json=body)
        assert answer.status_code in (200, 201), answer.text

        async def in_force() -> bool:
            check = {"path": f"/{queue}/x", "userId": "probe"}
            return bool((await admin.get("/api/gate/check", params=check)).json().get("queue") == queue)

        await eventually(in_force, 5, "the policy is in force", every=0.05)
        await admin.delete("/api/queue/entry", params={"userId": "probe", "queue": queue})


async def in_line(page: Page, place: Place, queue: str) -> None:
    await page.goto(f"{place.site}/{queue}/shoes?size=9#top")
    await expect(page).to_have_url(re.compile("/wait/"))
    await expect(page.locator("#rank")).not_to_be_empty()


async def test_a_visitor_waits_refreshes_opens_a_second_tab_and_lands_on_the_page_they_asked_for(
    browser: Browser, place: Place, queue: str
) -> None:
    await configure(place, queue, capacity=0)
    first, second = await browser.new_context(), await browser.new_context()
    ahead, page = await first.new_page(), await second.new_page()
    await in_line(ahead, place, queue)
    await in_line(page, place, queue)
    await expect(page.locator("#rank")).to_have_text("2")
    # Screen readers hear milestones and not each number.
    await expect(page.locator("#rank")).to_have_attribute("aria-live", "off")

    await page.reload()
    await expect(page.locator("#rank")).to_have_text("2")
    tab = await second.new_page()
    await in_line(tab, place, queue)
    await expect(tab.locator("#rank")).to_have_text("2")

    await configure(place, queue, capacity=1)
    await expect(ahead).to_have_url(f"{place.site}/{queue}/shoes?size=9", timeout=20_000)
    await expect(page.locator("#rank")).to_have_text("1", timeout=20_000)
    await configure(place, queue, capacity=2)
    await expect(page).to_have_url(f"{place.site}/{queue}/shoes?size=9", timeout=20_000)
    await expect(page.locator("body")).to_contain_text(f"page /{queue}/shoes?size=9")


async def test_a_lost_network_is_told_and_survived(browser: Browser, place: Place, queue: str) -> None:
    await configure(place, queue, capacity=0)
    context = await browser.new_context()
    page = await context.new_page()
    async with page.expect_response(re.compile("/stream")):
        await in_line(page, place, queue)
    # What is on its way is still delivered, and says that all is well: let it arrive first.
    await page.evaluate("new Promise(done => setTimeout(done, 500))")
    await context.set_offline(True)
    await expect(page.locator("#connection")).to_contain_text("still in line", timeout=20_000)
    await expect(page.locator("#rank")).to_have_text("1")
    await context.set_offline(False)
    await expect(page.locator("#connection")).to_be_empty(timeout=20_000)


async def test_without_scripts_the_page_refreshes_itself_and_lets_the_visitor_in(
    browser: Browser, place: Place, queue: str
) -> None:
    await configure(place, queue, capacity=0)
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(f"{place.site}/{queue}/shoes")
    await expect(page.get_by_role("link", name="Check again")).to_be_visible()
    await expect(page).to_have_url(re.compile("plain=1"), timeout=30_000)
    answer = await page.reload()
    assert answer is not None
    assert "refresh" in answer.headers
    await configure(place, queue, capacity=1)
    await expect(page).to_have_url(f"{place.site}/{queue}/shoes", timeout=30_000)


async def test_leaving_is_final_and_joining_again_is_offered(browser: Browser, place: Place, queue: str) -> None:
    await configure(place, queue, capacity=0)
    page = await browser.new_page()
    await in_line(page, place, queue)
    await page.get_by_role("link", name="Leave the line").click()
    await expect(page.get_by_role("heading")).to_have_text("You are no longer in line")
    await page.get_by_role("link", name="Join the line").click()
    await expect(page.locator("#rank")).to_have_text("1")


async def test_who_joins_again_sees_the_new_place_and_not_the_better_one_of_before(
    browser: Browser, place: Place, queue: str
) -> None:
    await configure(place, queue, capacity=0)
    page, other = await browser.new_page(), await browser.new_page()
    await in_line(page, place, queue)
    await expect(page.locator("#rank")).to_have_text("1")
    assert await page.locator("#progress").get_attribute("value") in ("0", None)
    await in_line(other, place, queue)
    await page.get_by_role("link", name="Leave the line").click()
    await page.get_by_role("link", name="Join the line").click()
    await expect(page.locator("#rank")).to_have_text("2")


async def test_where_streams_do_not_come_through_the_page_polls(browser: Browser, place: Place, queue: str) -> None:
    await configure(place, queue, capacity=0)
    page = await browser.new_page()
    await page.route("**/api/queue/stream*", lambda route: route.abort())
    await in_line(page, place, queue)
    await configure(place, queue, capacity=1)
    await expect(page).to_have_url(f"{place.site}/{queue}/shoes?size=9", timeout=40_000)


async def test_a_closed_lid_costs_nothing_and_the_turn_is_taken_when_it_opens(
    browser: Browser, place: Place, queue: str
) -> None:
    await configure(place, queue, capacity=0)
    context = await browser.new_context()
    page = await context.new_page()
    await in_line(page, place, queue)
    # A machine that sleeps runs no script and hears nothing.
    lid = await context.new_cdp_session(page)
    await context.set_offline(True)
    await lid.send("Page.setWebLifecycleState", {"state": "frozen"})
    await configure(place, queue, capacity=1)
    async with place.admin() as admin:

        async def called() -> bool:
            return bool((await admin.get(f"/api/admin/queues/{queue}")).json()["holds"] >= 1)

        await eventually(called, 20, "it is the visitor's turn", every=0.1)
    await lid.send("Page.setWebLifecycleState", {"state": "active"})
    await context.set_offline(False)
    await expect(page).to_have_url(f"{place.site}/{queue}/shoes?size=9", timeout=20_000)


async def test_a_line_that_opens_later_says_when(browser: Browser, place: Place, queue: str) -> None:
    await configure(place, queue, capacity=1, opensAt="2099-05-01T09:00:00Z")
    for scripts in (True, False):
        context = await browser.new_context(java_script_enabled=scripts, timezone_id="Asia/Seoul")
        page = await context.new_page()
        await page.goto(f"{place.site}/{queue}/shoes")
        told = "May 1, 2099 at 6:00 PM" if scripts else "2099-05-01 09:00 UTC"
        await expect(page.locator("#eta")).to_have_text(f"The line opens at {told}.")


async def test_a_paused_line_says_so_in_every_language_and_without_scripts(
    browser: Browser, place: Place, queue: str
) -> None:
    await configure(place, queue, capacity=0)
    page = await browser.new_page()
    await in_line(page, place, queue)
    plain = await (await browser.new_context(java_script_enabled=False)).new_page()
    async with place.admin() as admin:
        await admin.post(f"/api/admin/queues/{queue}/pause")
        await expect(page.locator("#eta")).to_have_text("The line is paused. Your place is kept.")
        await plain.goto(f"{place.site}/wait/{queue}?plain=1")
        await expect(plain.locator("#eta")).to_have_text("The line is paused. Your place is kept.")
        said = set()
        for language in LANGUAGES:
            await page.goto(f"{place.site}/wait/{queue}?lang={language}")
            said.add(await page.locator("#eta").inner_text())
        assert len(said) == len(LANGUAGES)
        await page.goto(f"{place.site}/wait/{queue}?lang=en")
        await admin.post(f"/api/admin/queues/{queue}/resume")
        await expect(page.locator("#eta")).to_have_text("We are still measuring how fast the line moves.")


async def test_a_deleted_queue_sends_its_waiters_on(browser: Browser, place: Place, queue: str) -> None:
    await configure(place, queue, capacity=0)
    page = await browser.new_page()
    await in_line(page, place, queue)
    async with place.admin() as admin:
        await admin.delete(f"/api/admin/queues/{queue}")
    await expect(page).to_have_url(f"{place.site}/{queue}/shoes?size=9", timeout=40_000)


async def test_a_reset_queue_tells_its_waiters_and_offers_to_join_again(
    browser: Browser, place: Place, queue: str
) -> None:
    await configure(place, queue, capacity=0)
    page = await browser.new_page()
    await in_line(page, place, queue)
    async with place.admin() as admin:
        await admin.post(f"/api/admin/queues/{queue}/reset")
    await expect(page.get_by_role("heading")).to_have_text("You are no longer in line", timeout=30_000)
    await expect(page.locator("#turn")).to_have_text("The line was started again.")
    await page.get_by_role("link", name="Join the line").click()
    await expect(page.locator("#rank")).to_have_text("1")


async def test_the_operators_words_are_text_and_nothing_else(browser: Browser, place: Place, queue: str) -> None:
    words = "<img src=x onerror=alert(1)> & </script><script>alert(2)</script>"
    await configure(place, queue, capacity=0, message=words, theme={"color": "#b00040", "background": "#ffe9a8"})
    page = await browser.new_page()
    shown: list[str] = []
    page.on("dialog", lambda dialog: shown.append(dialog.message))
    await in_line(page, place, queue)
    await expect(page.locator(".message")).to_have_text(words)
    assert await page.locator("img").count() == 0
    assert shown == []


@pytest.mark.parametrize(("language", "scheme"), [("en", "light"), ("ko", "dark"), ("ar", "light")])
async def test_axe_finds_nothing(browser: Browser, place: Place, queue: str, language: str, scheme: str) -> None:
    await configure(place, queue, capacity=0, message="Doors open at noon.")
    context = await browser.new_context(
        viewport={"width": 320, "height": 640},
        color_scheme="dark" if scheme == "dark" else "light",
        bypass_csp=True,  # for axe itself, which is injected
    )
    page = await context.new_page()
    await page.goto(f"{place.site}/wait/{queue}?lang={language}")
    await expect(page.locator("#rank")).not_to_be_empty()
    assert await page.locator("html").get_attribute("dir") == ("rtl" if language == "ar" else "ltr")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 320
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("language", ["en", "ar"])
async def test_a_line_that_is_not_there_is_said_on_a_phone_too(browser: Browser, place: Place, language: str) -> None:
    context = await browser.new_context(viewport={"width": 320, "height": 640}, bypass_csp=True)
    page = await context.new_page()
    answer = await page.goto(f"{place.site}/wait/never-made?lang={language}")
    assert answer is not None
    assert answer.status == 404
    said = {"en": "This line is not there any more.", "ar": "هذا الطابور لم يعد موجودًا."}[language]
    await expect(page.get_by_role("heading")).to_have_text(said)
    await expect(page.locator("#go")).to_be_hidden()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 320
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
