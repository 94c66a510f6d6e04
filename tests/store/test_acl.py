"""The rights that `headgate doctor --acl` prints are enough, and there are no others."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

import headgate
from headgate.kit.problems import StoreRefused
from headgate.store import Index, StoreSettings, acl, open_store
from headgate.store.client.link import ServerError
from headgate.store.scripts.contracts import operations
from headgate.store.scripts.script import Script
from tests.topology import Sentinel, Topology

SOURCE = Path(headgate.__file__).parent


def test_commands_are_found_in_lua_and_in_python(tmp_path: Path) -> None:
    script, module = tmp_path / "a.lua", tmp_path / "a.py"
    script.write_text(
        "redis.call('HSET', KEYS[1])\nredis.pcall( \"XGROUP\", 'CREATE', KEYS[1])\nredis.call('GET', 'X')"
    )
    assert acl.called([script]) == {"hset", "xgroup|create", "get"}
    module.write_text(
        'link.send(("SCRIPT", "LOAD", source), limit)\nlink.push(("SUBSCRIBE", channel))\n'
        'await self.store.read(thing, "XRANGE", key)\nfile.read(100)\nfile.write("NOTHING")\nhttp.send("GET", path)'
    )
    assert acl.sent([module]) == {"script|load", "subscribe", "xrange"}


def test_every_command_in_our_scripts_is_a_literal() -> None:
    for file in SOURCE.rglob("*.lua"):
        text = file.read_text("utf-8")
        calls = sum(text.count(words) for words in ("redis.call(", "redis.pcall(", "together(queue, '"))
        assert calls == len(acl._CALL.findall(text)), file.name


def test_every_command_that_features_send_is_a_literal() -> None:
    """A thing is the first argument of the store's own read and write, and the command that follows is written out."""
    for package in acl.FEATURES:
        for file in (SOURCE / package).rglob("*.py"):
            for call in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(("store.read", "store.write")):
                    command = call.args[1]
                    assert isinstance(command, ast.Constant), f"{file.name}:{call.lineno}: {ast.unparse(call)}"


@pytest.mark.parametrize("process", acl.PACKAGES)
async def test_a_process_works_with_its_rights_and_can_do_nothing_else(
    server: Topology, prefix: str, process: str
) -> None:
    user = f"headgate-{process}"
    rules = ["on", ">s3cret", *acl.rules(process, prefix).split()]
    for node in server.servers if isinstance(server, Sentinel) else server.nodes:
        node.command("ACL", "SETUSER", user, *rules)
    url = server.url.replace("://", f"://{user}:s3cret@", 1)
    async with open_store(StoreSettings(url=url, prefix=prefix, volatile=True, deadline_ms=10_000)) as store:
        index = Index(store, "queue")
        thing = store.thing("queue", "default", "main")
        with store.hints.listen(thing, "events", lambda _text: None):
            await index.put(thing, due_in_ms=0)
            assert await index.list("default") == [thing]
        assert (await store.facts())[0].min_replicas is None
        for command in (("CONFIG", "GET", "*"), ("KEYS", "*"), ("FLUSHALL",), ("HGET", "someone-elses", "a")):
            with pytest.raises(StoreRefused):
                await store.read(thing, *command)
        for link in await store.route.primaries():
            limit = asyncio.get_running_loop().time() + 10
            for path in operations():
                try:
                    await link.send(("SCRIPT", "LOAD", Script(path).source), limit)
                except ServerError as error:
                    pytest.fail(f"{path.name}: {error}")
