"""The rights that `headgate doctor --acl` prints are enough, and each of them is needed."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate
from headgate.kit.problems import StoreRefused
from headgate.store import Index, StoreSettings, acl, open_store
from headgate.store.contracts import operations
from headgate.store.link import ServerError
from headgate.store.script import Script
from tests.topology import Sentinel, Topology

SOURCE = Path(headgate.__file__).parent
# Sent to sentinels, by the doctor, or where a refusal will do: nothing of ours in the store depends on these rights.
OTHER = {"cluster|info", "config|get", "sentinel|get-master-addr-by-name"}
WITH_SUBCOMMAND = {"CLUSTER", "CONFIG", "SCRIPT", "SENTINEL"}


def commands_sent() -> Iterator[tuple[str, str]]:
    """Find the commands that Python code sends: constants in upper case at the start of what a link or the store gets."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in {"send", "push"} and node.args and isinstance(node.args[0], ast.Tuple):
                    words = node.args[0].elts
                elif node.func.attr == "_push":
                    words = node.args
                elif node.func.attr in {"read", "write"} and len(node.args) > 1:
                    words = node.args[1:]
                else:
                    continue
                said = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
                if said and said[0].isupper() and said[0].isalpha() and words[0].value == said[0]:  # type: ignore[attr-defined]
                    full = "|".join(said[:2]) if said[0] in WITH_SUBCOMMAND else said[0]
                    yield full.lower(), file.name


def test_every_command_that_python_sends_is_listed_and_no_other() -> None:
    sent = {command for command, _ in commands_sent()}
    assert sent - acl.SENT - OTHER == set(), "add them to SENT in store/acl.py"
    assert acl.SENT - sent == set(), "nothing sends these; take them out of SENT in store/acl.py"


def test_every_command_in_lua_is_found() -> None:
    every = acl.called(SOURCE.rglob("*.lua"))
    assert {"time", "publish", "hset"} <= every
    for file in SOURCE.rglob("*.lua"):
        text = file.read_text("utf-8")
        assert text.count("redis.call(") + text.count("redis.pcall(") == len(acl._CALL.findall(text)), file.name


@pytest.mark.parametrize("process", acl.PACKAGES)
async def test_a_process_works_with_its_rights_and_can_do_nothing_else(
    server: Topology, prefix: str, process: str
) -> None:
    user = f"headgate-{process}"
    rules = ["on", ">s3cret", *acl.rules(process, prefix).split()]
    for node in server.servers if isinstance(server, Sentinel) else server.nodes:
        node.command("ACL", "SETUSER", user, *rules)
    url = server.url.replace("://", f"://{user}:s3cret@", 1)
    async with open_store(StoreSettings(url=url, prefix=prefix, volatile=True)) as store:
        index = Index(store, "queue")
        thing = store.thing("queue", "default", "main")
        heard = asyncio.Event()
        with store.hints.listen(thing, "events", lambda _text: heard.set()):
            await index.put(thing, due_in_ms=0)
            assert await index.list("default") == [thing]
        assert (await store.facts())[0].min_replicas is None
        for command in (("CONFIG", "GET", "*"), ("KEYS", "*"), ("FLUSHALL",), ("GET", "someone-elses")):
            with pytest.raises(StoreRefused):
                await store.read(thing, *command)
        for link in await store.route.primaries():
            for path in operations():
                try:
                    await link.send(("SCRIPT", "LOAD", Script(path).source), store.deadline())
                except ServerError as error:
                    pytest.fail(f"{path.name}: {error}")
