"""The console in a browser: sign in, run a queue with the mouse, and nobody overwrites anybody unseen."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import httpx2
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from tests.browser.conftest import Place
from tests.topology import eventually


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


async def make_reader(admin: httpx2.AsyncClient, name: str) -> str:
    """Make a token that may look, and wait until the gateway knows it."""
    token = str((await admin.post("/api/admin/tokens", json={"name": name, "role": "read"})).json()["token"])

    async def known() -> bool:
        return (await admin.get("/api/admin/queues", headers={"X-API-Token": token})).status_code == 200

    await eventually(known, 2, "the token is known")
    return token


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
    await page.get_by_label("Name", exact=True).fill(queue)
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
    await page.get_by_label("Most people called in a tick").fill("50")
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
    await expect(page.get_by_label("Most people called in a tick")).to_have_value("61", timeout=10_000)


async def test_a_reader_sees_everything_and_changes_nothing(browser: Browser, place: Place, queue: str) -> None:
    await make(place, queue)
    async with place.admin() as admin:
        token = await make_reader(admin, f"r-{queue}")
    page = await browser.new_page()
    await sign_in(page, place, token)
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


async def test_when_a_queue_switches_itself_on_is_set_with_the_mouse_and_taken_back(
    page: Page, place: Place, queue: str
) -> None:
    await make(place, queue)
    await open_queue(page, place, queue)
    await page.get_by_label("Resource").fill("product-*")
    await page.get_by_label("At so many requests").fill("500")
    await page.get_by_label("Addresses").fill("10.0.0.0/8\n192.0.2.7")
    await page.get_by_label("Colour").fill("#9a3b12")
    await page.get_by_role("button", name="Save policy").click()
    await expect(page.locator("#toasts")).to_contain_text("in force")
    async with place.admin() as admin:
        view = (await admin.get(f"/api/admin/queues/{queue}")).json()
        assert (view["auto"]["resource"], view["auto"]["threshold"]) == ("product-*", 500)
        assert view["bypass"]["addresses"] == ["10.0.0.0/8", "192.0.2.7"]
        assert view["theme"]["color"] == "#9a3b12"
        await page.get_by_label("Addresses").fill("10.0.0.1/8")
        await page.get_by_role("button", name="Save policy").click()
        await expect(page.locator("form [role=alert]").first).to_contain_text("host bits")
        await page.get_by_label("Addresses").fill("")
        await page.get_by_label("Resource").fill("")
        await page.get_by_role("button", name="Save policy").click()
        await expect(page.get_by_label("At so many requests")).to_have_value("")
        view = (await admin.get(f"/api/admin/queues/{queue}")).json()
        assert view["auto"] is None
        assert view["bypass"]["addresses"] == []


async def test_a_new_queue_does_not_overwrite_one_that_is_there(page: Page, place: Place, queue: str) -> None:
    await make(place, queue, capacity=7)
    await page.get_by_label("Name", exact=True).fill(queue)
    await page.get_by_label("Seats").fill("3")
    await page.get_by_role("button", name="Create queue").click()
    await expect(page.get_by_role("alert")).to_have_text("There is a queue of this name already.")
    async with place.admin() as admin:
        assert (await admin.get(f"/api/admin/queues/{queue}")).json()["capacity"] == 7


async def test_a_value_is_published_compared_and_rolled_back(page: Page, place: Place, queue: str) -> None:
    await page.goto(f"{place.gateway.url}/console#/config/{queue}%2Fprice")
    content = page.get_by_label("Content")
    for text in ("euro 39\nshipping 5", "euro 35\nshipping 5"):
        await content.fill(text)
        await page.get_by_label("Reason").fill("season")
        await page.get_by_role("button", name="Publish").click()
        await expect(page.get_by_role("button", name="Compare")).to_have_count(text.startswith("euro 35") + 1)
    first = page.get_by_role("row").filter(has=page.get_by_role("cell", name="1", exact=True))
    await first.get_by_role("button", name="Compare").click()
    await expect(page.locator(".diff del")).to_have_text("- euro 39")
    await expect(page.locator(".diff ins")).to_have_text("+ euro 35")
    await first.get_by_role("button", name="Roll back").click()
    await page.locator("dialog").get_by_role("button", name="Roll back").click()
    await expect(content).to_have_value("euro 39\nshipping 5")
    async with place.admin() as admin:
        assert (await admin.get(f"/cfg/v1/default/{queue}/price")).json()["version"] == 3


async def test_another_namespace_is_chosen_and_stays_through_links_and_a_reload(
    page: Page, place: Place, queue: str
) -> None:
    async with place.admin() as admin:
        await admin.put(f"/cfg/v1/{queue}/price", json={"content": "39"})
        await admin.put(f"/api/admin/queues/door?namespace={queue}", json={"capacity": 0})
    await page.goto(f"{place.gateway.url}/console#/config")
    chosen = page.get_by_label("Namespace")
    await expect(chosen).to_have_value("default")
    await chosen.fill(queue)
    await chosen.press("Enter")
    await page.get_by_role("link", name="price").click()
    await expect(page.get_by_label("Content")).to_have_value("39")
    assert page.url.endswith(f"#/config/price?namespace={queue}")
    await page.reload()
    await expect(page.get_by_label("Content")).to_have_value("39")
    await expect(chosen).to_have_value(queue)
    await page.get_by_role("link", name="Queues", exact=True).click()
    await page.get_by_role("link", name="door").click()
    await expect(page.locator(".figure").first).to_be_visible()
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("h1 .tag")).to_have_text("paused")
    await chosen.fill("not a name")
    await chosen.press("Enter")
    assert page.url.endswith(f"#/queues/door?namespace={queue}")
    await chosen.fill("")
    await chosen.press("Enter")
    await expect(chosen).to_have_value("default")
    await expect(page.get_by_role("link", name="door")).to_have_count(0)
    async with place.admin() as admin:
        await admin.delete(f"/api/admin/queues/door?namespace={queue}")


async def test_a_token_of_one_namespace_is_shown_that_one(browser: Browser, place: Place, queue: str) -> None:
    async with place.admin() as admin:
        body = {"name": f"n-{queue}", "role": "read", "namespace": queue}
        token = str((await admin.post("/api/admin/tokens", json=body)).json()["token"])
        await admin.put(f"/cfg/v1/{queue}/price", json={"content": "39"})

        async def known() -> bool:
            return (await admin.get(f"/cfg/v1/{queue}", headers={"X-API-Token": token})).status_code == 200

        await eventually(known, 2, "the token is known")
    page = await browser.new_page()
    await sign_in(page, place, token)
    await page.goto(f"{place.gateway.url}/console#/config?namespace=other")
    await expect(page.get_by_role("link", name="price")).to_be_visible()
    await expect(page.get_by_label("Namespace")).to_have_count(0)
    await expect(page.locator("#top .space")).to_have_text(f"Namespace {queue}")


async def test_an_upstream_is_made_once_and_not_overwritten(page: Page, place: Place, queue: str) -> None:
    made = page.get_by_role("heading", name="Policy")
    refused = page.get_by_text("There is an upstream of this name already.")
    for outcome in (made, refused):
        await page.goto(f"{place.gateway.url}/console#/relay")
        await page.get_by_role("textbox", name="Name", exact=True).fill(queue)
        await page.get_by_role("textbox", name="Base URL").fill("http://127.0.0.1:9")
        await page.get_by_role("button", name="Create upstream").click()
        await expect(outcome).to_be_visible()
    async with place.admin() as admin:
        assert (await admin.get(f"/api/admin/upstreams/{queue}")).json()["version"] == 1
    row = page.get_by_role("row", name=queue)
    await expect(row).to_contain_text("10 in 60 s per user (window)")


async def test_a_token_is_made_shown_once_and_revoked(page: Page, place: Place, queue: str) -> None:
    await page.goto(f"{place.gateway.url}/console#/tokens")
    await page.get_by_role("textbox", name="Name", exact=True).fill(queue)
    await page.get_by_role("combobox", name="Role").select_option("read")
    await page.get_by_role("button", name="Make token").click()
    secret = await page.locator("[role=status] code").inner_text()
    async with place.admin() as admin:
        headers = {"X-API-Token": secret}

        async def answered(status: int) -> bool:
            return (await admin.get("/api/admin/queues", headers=headers)).status_code == status

        await eventually(lambda: answered(200), 2, "the token is known")
        await page.get_by_role("row", name=queue).get_by_role("button", name="Revoke").click()
        await page.locator("dialog").get_by_role("button", name="Revoke").click()
        await expect(page.get_by_role("row", name=queue)).to_have_count(0)
        await eventually(lambda: answered(401), 5, "the token is known no more")


async def test_a_lock_is_seen_and_broken(page: Page, place: Place, queue: str) -> None:
    async with place.admin() as admin:
        held = await admin.post(f"/lock/v1/{queue}/acquire", json={"ttlSeconds": 60})
        assert held.status_code == 200, held.text
        await page.goto(f"{place.gateway.url}/console#/locks")
        await expect(page.get_by_role("row", name=queue).get_by_role("cell").nth(2)).to_have_text("admin")
        await page.get_by_role("row", name=queue).get_by_role("button", name="Break").click()
        await page.locator("dialog").get_by_role("textbox").fill(queue)
        await page.locator("dialog").get_by_role("button", name="Break").click()
        await expect(page.locator("#toasts")).to_contain_text("is free")
        assert not (await admin.get(f"/lock/v1/{queue}")).json()["held"]


async def test_an_instance_is_drained_disabled_and_removed(page: Page, place: Place, queue: str) -> None:
    async with place.admin() as admin:
        body = {"instanceId": queue, "type": queue, "privateIp": "127.0.0.1", "port": 9, "ttlSeconds": 300}
        assert (await admin.post("/sd/v1/instances", json=body)).status_code in (200, 201)
    await page.goto(f"{place.gateway.url}/console#/services/{queue}/default")
    row = page.get_by_role("row", name=queue)
    await row.get_by_role("button", name="Drain").click()
    await expect(row).to_contain_text("draining")
    await row.get_by_role("button", name="Stop draining").click()
    await expect(row.get_by_role("button", name="Drain")).to_be_visible()
    await row.get_by_role("button", name="Disable").click()
    await expect(row).to_contain_text("disabled")
    await row.get_by_role("button", name="Remove").click()
    await page.locator("dialog").get_by_role("button", name="Remove").click()
    await expect(row).to_have_count(0)


async def test_no_limit_is_an_empty_field_and_stays_no_limit(page: Page, place: Place, queue: str) -> None:
    async with place.admin() as admin:
        assert (await admin.put(f"/api/admin/queues/{queue}", json={"paths": ["/sale/*"]})).is_success

        async def policy() -> tuple[int, float]:
            view = (await admin.get(f"/api/admin/queues/{queue}")).json()
            return view["capacity"], view["ratePerSecond"]

        async def save() -> None:
            version = (await admin.get(f"/api/admin/queues/{queue}")).json()["version"]
            await page.get_by_role("button", name="Save policy").click()

            async def saved() -> bool:
                return bool((await admin.get(f"/api/admin/queues/{queue}")).json()["version"] > version)

            await eventually(saved, 10)

        await open_queue(page, place, queue)
        seats = page.get_by_label("Seats (fixed)")
        await expect(seats).to_have_value("")
        await expect(seats).to_have_attribute("placeholder", "no limit")
        await page.get_by_label("Admissions a second").fill("7")
        await save()
        assert await policy() == (10_000_000, 7)
        await seats.fill("3")
        await save()
        assert await policy() == (3, 7)
        await seats.fill("10000000")
        await save()
        await expect(seats).to_have_value("")


async def test_fields_with_special_names_say_how_the_api_calls_them(page: Page, place: Place, queue: str) -> None:
    await make(place, queue)
    await open_queue(page, place, queue)
    for title, name in (
        ("Most people called in a tick", "batch"),
        ("Keep the place of somebody away", "keepSeconds"),
        ("Status can be asked after the end", "finishedSeconds"),
    ):
        await expect(page.locator("label", has_text=title)).to_contain_text(name)


async def test_a_clock_that_is_off_is_shown_on_the_system_page_and_not_as_load(
    page: Page, place: Place, queue: str
) -> None:
    wrong = {"type": f"headgate-{queue}", "group": "default", "instanceId": "i1", "privateIp": "10.0.0.9"}
    async with place.admin() as admin:
        figures = {"clockOffsetSeconds": -12, "cpu": 0.5}
        assert (await admin.post("/sd/v1/instances", json={**wrong, "metrics": figures})).is_success
    await page.goto(f"{place.gateway.url}/console#/services/headgate-{queue}/default")
    await expect(page.get_by_role("cell", name="cpu 0.5", exact=True)).to_be_visible()
    await page.goto(f"{place.gateway.url}/console#/system")
    await expect(page.locator("tr", has_text=queue)).to_contain_text("12 s off")
    await expect(page.locator("tr", has_text="headgate-gateway")).to_contain_text("right")


async def test_the_page_of_a_service_breaks_no_line_that_has_room(page: Page, place: Place, queue: str) -> None:
    record = {"type": queue, "group": "g", "instanceId": "01M7P72SJDGVSCXWFJCAFRNVJC", "privateIp": "127.0.0.1"}
    async with place.admin() as admin:
        figures = {"cpu": 0.52, "players": 120, "connections": 240}
        made = await admin.post("/sd/v1/instances", json={**record, "port": 65000, "metrics": figures})
        assert made.is_success
    await page.set_viewport_size({"width": 1280, "height": 900})
    await page.goto(f"{place.gateway.url}/console#/services/{queue}/g")
    row = page.locator("tbody tr")
    await expect(row.get_by_role("button", name="Remove")).to_be_visible()
    tops = {
        round(await button.evaluate("each => each.getBoundingClientRect().top"))
        for button in await row.get_by_role("button").all()
    }
    assert len(tops) == 1, "all levers are in one row"
    for cell in (row.locator("code.id"), row.get_by_text(" ago")):
        assert await cell.evaluate("each => each.getBoundingClientRect().height") < 30
    assert await page.evaluate("document.documentElement.scrollWidth") <= 1280
    await page.set_viewport_size({"width": 390, "height": 844})
    revision = page.locator(".figure", has_text="Revision").locator("dd")
    assert await revision.evaluate("each => each.getBoundingClientRect().height") < 50, "a number is not split"


async def test_the_buttons_of_a_key_keep_clear_of_its_fields_on_a_phone(page: Page, place: Place, queue: str) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"{place.gateway.url}/console#/config/{queue}")
    reason, publish = page.get_by_label("Reason"), page.get_by_role("button", name="Publish")
    await expect(publish).to_be_visible()
    field, button = await reason.bounding_box(), await publish.bounding_box()
    assert field is not None
    assert button is not None
    assert button["y"] - field["y"] - field["height"] >= 8


async def test_the_namespaces_of_tokens_are_offered_and_any_other_can_be_typed(
    page: Page, place: Place, queue: str
) -> None:
    async with place.admin() as admin:
        token = {"name": queue, "role": "read", "namespace": f"ns-{queue}"}
        assert (await admin.post("/api/admin/tokens", json=token)).is_success
        await page.reload()
        await expect(page.locator(f"#namespaces option[value='ns-{queue}']")).to_have_count(1)
        chooser = page.get_by_label("Namespace")
        await chooser.focus()
        await expect(chooser).to_have_attribute("placeholder", "default, or any other")
        await chooser.blur()
        await expect(chooser).to_have_value("default")
        await admin.delete(f"/api/admin/tokens/{queue}")


async def test_a_reader_is_offered_nothing_that_would_be_refused(browser: Browser, place: Place, queue: str) -> None:
    async with place.admin() as admin:
        token = await make_reader(admin, f"o-{queue}")
        await admin.put(f"/cfg/v1/default/{queue}", json={"content": "39"})
        await admin.post(f"/lock/v1/{queue}/acquire", json={"ttlSeconds": 60})
    page = await browser.new_page()
    await sign_in(page, place, token)
    await expect(page.get_by_role("button", name="Create queue")).to_have_count(0)
    await page.goto(f"{place.gateway.url}/console#/config/{queue}")
    await expect(page.get_by_label("Content")).to_have_value("39")
    await expect(page.get_by_role("button", name="Compare")).to_be_visible()
    for name in ("Publish", "Delete", "Roll back"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
    await page.goto(f"{place.gateway.url}/console#/locks")
    await expect(page.get_by_role("row", name=queue)).to_be_visible()
    await expect(page.get_by_role("button", name="Break")).to_have_count(0)
    await page.goto(f"{place.gateway.url}/console#/relay")
    await expect(page.get_by_role("heading", name="Relay")).to_be_visible()
    await expect(page.get_by_role("button", name="Create upstream")).to_have_count(0)


async def test_whatever_somebody_wrote_is_text_in_the_console_and_its_policy_holds(
    browser: Browser, place: Place, queue: str
) -> None:
    hostile = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    await make(place, queue, message="before")
    async with place.admin() as admin:
        await admin.put(f"/api/admin/queues/{queue}", json={"message": hostile})
        await admin.put(f"/cfg/v1/default/{queue}", json={"content": hostile, "reason": hostile[:60]})
        long = await admin.put(f"/api/admin/queues/{queue}", json={"message": "x" * 10_000})
        assert long.status_code == 422
    page = await browser.new_page()  # without leave to bend the page's own security policy
    shown: list[str] = []
    page.on("dialog", lambda dialog: shown.append(dialog.message))
    page.on("console", lambda line: shown.append(line.text) if "Content Security Policy" in line.text else None)
    await sign_in(page, place, place.gateway.token)
    await open_queue(page, place, queue)
    await expect(page.get_by_label("Message to those who wait")).to_have_value(hostile)
    await expect(page.locator(".changes")).to_contain_text("onerror", timeout=20_000)
    await page.goto(f"{place.gateway.url}/console#/config/{queue}")
    await expect(page.get_by_role("button", name="Compare")).to_be_visible()
    await page.get_by_role("button", name="Compare").click()
    await expect(page.locator(".diff")).to_contain_text("onerror")
    assert await page.locator("img").count() == 0
    assert shown == []


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


async def test_of_a_queue_that_is_not_there_only_that_is_said_and_the_way_back(
    page: Page, place: Place, queue: str
) -> None:
    await page.goto(f"{place.gateway.url}/console#/queues/{queue}")
    await expect(page.locator("main .error").first).to_contain_text("no queue")
    await expect(page.get_by_role("button", name="Delete")).to_be_hidden()
    await expect(page.get_by_role("button", name="Save policy")).to_be_hidden()
    await make(place, queue)
    await expect(page.get_by_role("button", name="Save policy")).to_be_visible()
    async with place.admin() as admin:
        await admin.delete(f"/api/admin/queues/{queue}")
    await expect(page.get_by_role("button", name="Save policy")).to_be_hidden()
    await page.get_by_role("link", name="All queues").click()
    await expect(page.get_by_role("heading", name="Queues")).to_be_visible()


async def test_of_an_upstream_that_is_not_there_only_that_is_said_and_the_way_back(
    page: Page, place: Place, queue: str
) -> None:
    await page.goto(f"{place.gateway.url}/console#/relay/{queue}")
    await expect(page.locator("main .error").first).to_contain_text("no upstream")
    await expect(page.get_by_role("button", name="Delete")).to_be_hidden()
    await page.get_by_role("link", name="All upstreams").click()
    await expect(page.get_by_role("button", name="Create upstream")).to_be_visible()


async def drawn(page: Page, *points: tuple[int, float | None]) -> tuple[list[str], list[str]]:
    """Draw a chart of these points; gives the words beside the plot and those below it."""
    return tuple(
        await page.evaluate(
            """async (points) => {
                const { chart } = await import('/console/assets/chart.js');
                const made = chart('Made up', { unit: ' s' });
                document.querySelector('main').replaceChildren(made.element);
                made.update([{ name: 'mean wait', points }]);
                const texts = (selector) => [...made.element.querySelectorAll(selector)].map((each) => each.textContent);
                return [texts('g text'), texts('.legend li')];
            }""",
            points,
        )
    )


async def test_a_chart_of_small_values_has_an_axis_that_tells_them_apart(page: Page) -> None:
    axis, _ = await drawn(page, (0, 0.004), (1000, 0.017))
    assert axis == ["0", "0.005", "0.01", "0.015", "0.02"]
    axis, _ = await drawn(page, (0, 0.000002), (1000, 0.000001))
    assert len(set(axis)) == len(axis)
    assert max(map(len, axis)) <= 5


async def test_a_chart_says_the_latest_that_was_measured_and_that_nothing_was_since(page: Page) -> None:
    _, legend = await drawn(page, (0, 7), (60_000, 12), (3_600_000, None))
    assert len(legend) == 1
    assert legend[0].startswith("mean wait: 12 s at ")
    assert legend[0].endswith("nothing since")
    _, legend = await drawn(page, (0, 7), (60_000, 12))
    assert legend == ["mean wait: 12 s"]


async def test_the_waits_are_drawn_until_now(page: Page, place: Place, queue: str) -> None:
    await make(place, queue)
    long_ago = "2026-01-01T09:00:00.000Z"
    minute = {"minute": long_ago, "meanWaitSeconds": 12, "meanEtaErrorSeconds": 1}
    await page.route("**/history*", lambda route: route.fulfill(json={"queue": queue, "minutes": [minute]}))
    await open_queue(page, place, queue)
    chart = page.locator(".card", has=page.get_by_role("heading", name="Wait, by minute"))
    await expect(chart.locator(".legend li").first).to_contain_text("nothing since")
    ends = await chart.locator("svg > text").all_text_contents()
    assert len(set(ends)) == 2, "the axis ends now, and not where it begins"
