"""Reading a query: the short way for names and ids gives what the long way gives."""

from __future__ import annotations

from typing import Annotated, Any

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Meta

from headgate.gateway.decoding import QueryReader
from headgate.kit.ids import MemberId
from headgate.kit.problems import HeadgateError
from headgate.kit.wire import Wire

Id = MemberId


class Person(Wire):
    """As those of the waiting room."""

    user_id: Id
    queue: Annotated[str, Meta(pattern=r"^(?!\.\.?\Z)[A-Za-z0-9_.:-]{1,8}\Z")] = "main"
    place_token: Annotated[str, Meta(max_length=8)] | None = None


class Code(Wire):
    """With signs that a query writes in another way, and a namespace of its own."""

    code: Annotated[str, Meta(pattern=r"^[a-z+%]{1,8}\Z")] = ""
    namespace: Id = "own"


class Checked(Wire):
    """With a rule that its pattern does not tell."""

    name: Id = "a"

    def __post_init__(self) -> None:
        if self.name == "b":
            raise ValueError("not b")


def told(reader: QueryReader, query: bytes) -> Any:
    try:
        return reader.read(query)
    except HeadgateError as error:
        return type(error), error.document()


NAMES = st.sampled_from(
    [b"userId", b"user_id", b"queue", b"placeToken", b"namespace", b"code", b"name", b"user%49d", b"", b"x"]
)
VALUES = st.one_of(
    st.sampled_from([b"", b"a", b"b", b"a-b_c", b"main", b"12345678", b"123456789", b"%61", b"a+b", b"a%0A", b".", b"..", b"...", b"\xc3\xa9", b"\xff", b"a=b"]),
    st.binary(max_size=6),
    st.just(b"z" * 65),
)  # fmt: skip
PAIRS = st.lists(st.tuples(NAMES, st.sampled_from([b"=", b"=", b"=", b""]), VALUES).map(b"".join), max_size=4).map(
    b"&".join
)


@given(st.one_of(PAIRS, st.binary(max_size=24)), st.sampled_from([Person, Code, Checked]), st.booleans())
@example(b"code=a+b", Code, False)
@example(b"code=%61", Code, False)
@example(b"namespace=x", Code, True)
@example(b"name=b", Checked, False)
@example(b"userId=u&queue=..", Person, False)
def test_any_query_gives_the_same_struct_or_the_same_problem_both_ways(
    query: bytes, kind: type[Wire], namespaced: bool
) -> None:
    short = QueryReader(kind, namespaced=namespaced)
    long = QueryReader(kind, namespaced=namespaced)
    long._plain_fields = {}
    assert told(short, query) == told(long, query)


def test_ids_and_names_go_the_short_way() -> None:
    reader = QueryReader(Person, namespaced=True)
    assert reader._read_plain(b"userId=u1&queue=main") == Person(user_id="u1")
    assert reader._read_plain(b"queue=main") is None
