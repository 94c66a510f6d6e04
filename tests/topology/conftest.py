"""The tools that break stores are tested on the same stores as the product."""

from tests.store.conftest import server as server
