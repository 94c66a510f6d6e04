"""Pages of long lists: `limit` is the page size, `page` is the `nextPage` of the previous page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Final, TypeVar

from msgspec import Meta

from headgate.kit.wire import Wire

MOST_ON_A_PAGE: Final = 1000

T = TypeVar("T")


class PageQuery(Wire, frozen=True):
    """Without `limit` the whole list is given."""

    limit: Annotated[int, Meta(ge=1, le=MOST_ON_A_PAGE)] | None = None
    page: Annotated[str, Meta(max_length=600)] | None = None


def page_of(
    items: Iterable[T], name: Callable[[T], str], limit: int | None, page: str | None
) -> tuple[list[T], str | None]:
    """Return the items of one page, sorted by name, and the next page, None if this is the last."""
    ordered = sorted((each for each in items if page is None or name(each) > page), key=name)
    if limit is None or len(ordered) <= limit:
        return ordered, None
    return ordered[:limit], name(ordered[limit - 1])


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split a list into parts of at most this size."""
    for first in range(0, len(items), size):
        yield items[first : first + size]
