"""No cookie jar for HTTP clients that act for many people: a cookie that one of them is given must not be sent for the others."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy


def no_cookies() -> CookieJar:
    """Make a cookie jar that stays empty, for a client's `cookies`: no domain may set a cookie in it."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))
