"""An empty cookie jar for HTTP clients that act for many users, whose cookies must not be mixed."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy


def no_cookies() -> CookieJar:
    """Make a cookie jar in which no domain may set a cookie."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))
