"""The page about the SDK names what there is: every parameter of the client, and URLs of stores that can be read."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from headgate.sdk import Headgate
from headgate.store.client.address import parse_address

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()
PARAMETERS = list(inspect.signature(Headgate).parameters)
STORES = [url for row in re.findall(r"^\| `(valkey[^|]*)` \|", PAGE, re.MULTILINE) for url in row.split("`, `")]


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_of_the_client_is_explained_in_its_docstring_and_on_the_page(name: str) -> None:
    assert re.search(rf"^{name}: \w", inspect.cleandoc(Headgate.__doc__ or ""), re.MULTILINE)
    assert re.search(rf"^\| `{name}` \| \w", PAGE, re.MULTILINE)


@pytest.mark.parametrize("url", STORES)
def test_every_store_url_on_the_page_can_be_read(url: str) -> None:
    assert parse_address(url.replace("…", "host/NAME" if "sentinel" in url else "host")).nodes


def test_help_says_what_making_a_client_does() -> None:
    assert "parameters" in (Headgate.__init__.__doc__ or "")
    assert len(STORES) >= 6
