"""The waiting page: one self-contained document per visitor, in their language and the operator's colours.

Every text from outside is escaped here and nowhere else. Style and script are inside the page and allowed by a nonce,
so the page needs no other request to be shown.
"""

from __future__ import annotations

import html
import re
import secrets
from datetime import UTC, datetime
from functools import cache
from typing import Final
from urllib.parse import urlencode

import msgspec

from headgate.kit.web import web_text
from headgate.waiting_room.policy import Theme

LANGUAGES: Final = ("en", "ko", "zh", "ja", "ar")
DEFAULT_COLOR: Final = "#1f5fbf"
DEFAULT_BACKGROUND: Final = ("#eef1f5", "#10161e")
_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_PLACE = re.compile(r"\{\{([\w.]+)\}\}")


class PageState(msgspec.Struct, frozen=True):
    """Everything that one visitor's page shows."""

    queue: str
    namespace: str
    language: str
    return_url: str
    status: dict[str, object]
    user_id: str = ""
    place_token: str = ""
    message: str = ""
    theme: Theme = Theme()
    notice: str = ""
    plain: bool = False
    other_host: bool = False
    missing: bool = False
    opens_at: datetime | None = None
    now: float = 0.0  # the store's time in seconds


class WaitingPage(msgspec.Struct, frozen=True):
    """A rendered page and the headers that belong to it."""

    body: bytes
    headers: dict[str, str]


def choose_language(asked: str | None, accepted: str | None) -> str:
    """Choose the page's language: the visitor's choice, else the browser's preference, else English."""
    if asked in LANGUAGES:
        return asked
    preferences: list[tuple[float, int, str]] = []
    for order, part in enumerate((accepted or "")[:512].split(",")):
        name, _, weight = part.strip().partition(";q=")
        try:
            preferences.append((-float(weight or 1), order, name.split("-")[0].lower()))
        except ValueError:
            continue
    return next((name for _, _, name in sorted(preferences) if name in LANGUAGES), LANGUAGES[0])


@cache
def texts_of(language: str) -> dict[str, str]:
    """Read the texts of a language; missing ones are English."""
    english = msgspec.json.decode(web_text("locales/en.json"), type=dict[str, str])
    return english | msgspec.json.decode(web_text(f"locales/{language}.json"), type=dict[str, str])


def render(state: PageState, *, refresh_seconds: int = 10) -> WaitingPage:
    """Render the page; a `plain` one is for browsers without scripts and is refreshed by a header."""
    nonce = secrets.token_urlsafe(16)
    words = texts_of(state.language)
    again_url = _address(state, language=state.language)
    in_line = state.status.get("status") in {"WAITING", "AWAY"}
    turn = state.status.get("status") in {"PROMOTED", "ACTIVE"}
    live = bool(state.user_id) and in_line and not state.plain
    heading = words["turn"] if turn else words["heading"] if in_line else words["over"]
    go_label, go_url = (words["enter"], state.return_url) if turn else (words["join_again"], again_url)
    if not state.user_id:
        heading, go_label = words["missing" if state.missing else "title"], words["check_again"]
    values = {
        "lang": state.language,
        "dir": words["dir"],
        "state": "line" if in_line else "turn" if turn else "over",
        "nonce": nonce,
        "title": html.escape(words["title"]),
        "heading": html.escape(heading),
        "logo": _logo(state.theme.logo),
        "message": f'<p class="message" dir="auto">{html.escape(state.message)}</p>' if state.message else "",
        "rank": html.escape(str(state.status.get("rank") or "")),
        "progress": "0",
        "eta": html.escape(_opening(words, state) or (words["paused"] if state.status.get("paused") else "")),
        "progress_hidden": " hidden" if state.plain else "",
        "explain": html.escape(state.notice or _explain(words, state, in_line=in_line)),
        "go_url": html.escape(go_url),
        "go_label": html.escape(go_label),
        "go_hidden": " hidden" if in_line or state.missing else "",
        "follow": "",
        "by_hand": "",
        "leave_url": html.escape(again_url),
        "languages": _switcher(state),
        "page": _for_script(state, words, again_url),
        "script": web_text("wait/page.js") if live else "",
        "style": _fill(web_text("wait/page.css"), _colours(state.theme)),
    }
    values.update({f"w.{key}": html.escape(text) for key, text in words.items()})
    if in_line:
        # A browser without scripts is redirected to the plain page, which refreshes itself.
        plain_url = html.escape(_address(state, language=state.language, plain="1"))
        values["by_hand"] = _without_script(
            f'<p><a class="button" href="{plain_url}">{values["w.check_again"]}</a></p>'
        )
        if not state.plain:
            values["follow"] = _without_script(
                f'<meta http-equiv="refresh" content="{refresh_seconds};url={plain_url}">'
            )
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Language": state.language,
        "Cache-Control": "no-store",
        "Content-Security-Policy": _policy(nonce, state.theme.logo),
        "Referrer-Policy": "no-referrer",
        "X-Robots-Tag": "noindex",
    }
    if state.plain and in_line:
        headers["Refresh"] = str(refresh_seconds)
    return WaitingPage(_fill(web_text("wait/page.html"), values).encode(), headers)


def _without_script(element: str) -> str:
    return f"<noscript>{element}</noscript>"


def _fill(template: str, values: dict[str, str]) -> str:
    return _PLACE.sub(lambda place: values[place[1]], template)


def _explain(words: dict[str, str], state: PageState, *, in_line: bool) -> str:
    if not in_line:
        return ""
    return words["explain_plain" if state.plain else "explain"]


def _opening(words: dict[str, str], state: PageState) -> str:
    """Give the text that says when the queue opens, if it is not open yet; the script shows it in local time."""
    opens_at = state.opens_at
    if opens_at is None or opens_at.timestamp() <= state.now:
        return ""
    return words["opens"].replace("{time}", f"{opens_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC")


def _address(state: PageState, *, language: str, **more: str) -> str:
    query = {"lang": language, **more}
    if not state.missing:
        query = {"return": state.return_url, **query}
    if state.namespace != "default":
        query["namespace"] = state.namespace
    return f"/wait/{state.queue}?{urlencode(query)}"


def _switcher(state: PageState) -> str:
    more = {"plain": "1"} if state.plain else {}
    links = []
    for language in LANGUAGES:
        here = ' aria-current="true"' if language == state.language else ""
        words = texts_of(language)
        address = html.escape(_address(state, language=language, **more))
        links.append(
            f'<a lang="{language}" dir="{words["dir"]}" hreflang="{language}" href="{address}"{here}>'
            f"{html.escape(words['name'])}</a>"
        )
    return " ".join(links)


def _for_script(state: PageState, words: dict[str, str], again_url: str) -> str:
    """Encode the script's data as JSON that cannot close its HTML element."""
    data = msgspec.json.encode(
        {
            "api": "/api/queue",
            "queue": state.queue,
            "namespace": state.namespace,
            "userId": state.user_id,
            "placeToken": state.place_token,
            "returnUrl": state.return_url,
            "elsewhere": state.other_host,
            "opensAt": state.opens_at,
            "againUrl": again_url,
            "lang": state.language,
            "title": words["title"],
            "status": state.status,
            "words": words,
        }
    )
    return data.decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _logo(address: str | None) -> str:
    return f'<img class="logo" src="{html.escape(address)}" alt="">' if address else ""


def _policy(nonce: str, logo: str | None) -> str:
    images = "'self' data:"
    if logo and logo.startswith("https://"):
        images += " " + "/".join(logo.split("/", 3)[:3])
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src {images}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _colours(theme: Theme) -> dict[str, str]:
    """Give the operator's colours, and text colours that are readable on them."""
    color = theme.color if theme.color and _HEX.fullmatch(theme.color) else DEFAULT_COLOR
    own = theme.background if theme.background and _HEX.fullmatch(theme.background) else None
    light, dark = (own, own) if own else DEFAULT_BACKGROUND
    bright = color if _luminance(color) > 0.18 else _lighter(color)
    return {
        "color": color,
        "on_color": _text_color_on(color),
        "color_dark": bright,
        "on_color_dark": _text_color_on(bright),
        "background": light,
        "on_background": _text_color_on(light),
        "background_dark": dark,
        "on_background_dark": _text_color_on(dark),
    }


def _text_color_on(color: str) -> str:
    """Choose black or white, whichever has more contrast; it is always at least 4.5 to 1."""
    return "#000000" if _luminance(color) > 0.179 else "#ffffff"


def _lighter(color: str) -> str:
    return "#" + "".join(f"{(part + 255 * 2) // 3:02x}" for part in _parts(color))


def _luminance(color: str) -> float:
    red, green, blue = (
        part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in _parts(color)
    )
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def _parts(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
