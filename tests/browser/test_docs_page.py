"""The API's pages in a real browser: every route and problem is there, at phone width as on a desk."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from tests.processes import GatewayProcess


@pytest.fixture
async def page(browser: Browser, gateway_process: GatewayProcess) -> AsyncIterator[Page]:
    """A page that may do nothing which the content policy forbids, and that must not complain."""
    context = await browser.new_context(base_url=gateway_process.url, viewport={"width": 360, "height": 740})
    opened = await context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    await context.close()
    assert complaints == []


async def test_every_route_is_shown(page: Page) -> None:
    await page.goto("/docs")
    document = await (await page.request.get("/openapi.json")).json()
    number = sum(len(item) for item in document["paths"].values())
    await expect(page.locator(".operation")).to_have_count(number)
    await expect(page.locator("header [aria-current]")).to_have_text("Routes")


async def test_what_takes_any_method_is_shown_so(page: Page) -> None:
    await page.goto("/docs#relay")
    route = page.locator("#relay")
    await expect(route.locator(".method")).to_have_text("ANY")
    await expect(route).to_contain_text("What the upstream answered")
    await expect(page.locator("#askForNginx")).to_contain_text("Must wait: X-Headgate-Location")


async def test_a_policy_is_explained_field_by_field_and_its_example_says_something(page: Page) -> None:
    await page.goto("/docs#configureQueue")
    route = page.locator("#configureQueue")
    for field in ("opensAt", "failMode", "auto.threshold", "theme.logo"):
        told = route.locator("h3:has-text('Body') + dl div", has=page.locator(f"dt code:text-is('{field}')")).locator(
            "dd"
        )
        assert len((await told.inner_text()).split(" · ")[-1]) > 20, field
    await expect(route.locator("pre")).to_contain_text('"ratePerSecond":5')
    await expect(route.locator(".answers > li").nth(1)).to_have_text("201application/json, as 200")
    assert "`" not in await route.inner_text()


async def test_link_opens_its_route(page: Page) -> None:
    await page.goto("/docs#createToken")
    route = page.locator("#createToken")
    await expect(route).to_have_attribute("open", "")
    await expect(route).to_be_in_viewport()
    await expect(route).to_contain_text("token_exists")
    await expect(route.locator("pre")).to_contain_text("X-API-Token: $HEADGATE_TOKEN")


async def test_problem_type_leads_to_its_explanation(page: Page) -> None:
    problem = await (await page.request.get("/api/system")).json()
    assert problem["type"] == "/docs/problems#unauthorized"
    await page.goto(problem["type"])
    await expect(page.locator("#unauthorized")).to_contain_text("Send a valid token")
    await expect(page.locator("#unauthorized")).to_be_in_viewport()


async def test_filter_leaves_what_has_its_words(page: Page) -> None:
    await page.goto("/docs")
    await page.get_by_label("Filter").fill("make token")
    await expect(page.locator(".operation:visible")).to_have_count(1)
    await page.get_by_label("Filter").fill("no such words")
    await expect(page.get_by_text("Nothing here has these words.")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/docs#createToken", "/docs/problems"])
async def test_fits_a_phone_and_axe_finds_nothing(
    browser: Browser, gateway_process: GatewayProcess, path: str, scheme: str
) -> None:
    context = await browser.new_context(
        base_url=gateway_process.url,
        viewport={"width": 360, "height": 740},
        color_scheme="dark" if scheme == "dark" else "light",
        bypass_csp=True,  # for the checker's own script
    )
    opened = await context.new_page()
    await opened.goto(path)
    await expect(opened.get_by_role("heading", level=1)).to_be_visible()
    assert await opened.evaluate("document.documentElement.scrollWidth") <= 360
    found = await Axe().run(opened)
    assert found.violations_count == 0, found.generate_report()
    await context.close()
