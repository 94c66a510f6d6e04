"""A program with a client that forks: `python -m tests.http.forking CASE URL TOKEN PREFIX`; it prints what each process saw."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Callable

import msgspec

from headgate.sdk import Headgate, HeadgateSync

TTL = 60.0


def say(who: str, **facts: object) -> None:
    sys.stdout.write(msgspec.json.encode({"who": who, **facts}).decode() + "\n")
    sys.stdout.flush()


def outcome(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:  # noqa: BLE001 -- its name is what the test looks at
        return type(error).__name__
    return "done"


def in_child(way: str, work: Callable[[], None], leave: Callable[[int], object] = sys.exit) -> int:
    """Run something in a forked child and give its exit code; a child of `os.fork` leaves the parent's blocks by default."""
    if way == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        return child.exitcode or 0
    pid = os.fork()
    if pid == 0:
        work()
        leave(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def sync(way: str, client: HeadgateSync) -> None:
    with client as hg:
        before, locks, show = hg.lock("before", ttl=TTL), hg.locks, hg.locks.show
        with before:
            pass
        with hg.lock("parent", ttl=TTL) as held:

            def child() -> None:
                with hg.lock("child", ttl=TTL) as mine, before:
                    say(
                        "child",
                        child_holds=mine.fence > 0 and hg.locks.show("child").held,
                        parent_holds=locks.show("parent").held,
                        lost=held.lost,
                        fence=outcome(lambda: held.fence),
                        release=outcome(held.release),
                        call_from_before=outcome(lambda: show("child")),
                        taken=outcome(lambda: hg.lock("parent", wait=0).acquire()),
                    )

            code = in_child(way, child)
            say("parent", code=code, lost=held.lost, holds=hg.locks.show("parent").held, fence=held.fence > 0)
        with hg.lock("child", ttl=TTL, wait=10), before:
            say("after", held=hg.locks.show("parent").held)


async def use(client: Headgate) -> None:
    async with client.lock("child", ttl=TTL):
        pass


def asynchronous(way: str, client: Headgate) -> None:
    def child() -> None:
        async def again() -> None:
            async with client:
                await use(client)

        say("child", inherited=outcome(lambda: asyncio.run(use(client))), anew=outcome(lambda: asyncio.run(again())))

    async def parent() -> None:
        async with client as hg:
            await use(hg)
            code = in_child(way, child, os._exit)  # no child may go on with its parent's event loop
            await use(hg)
            say("parent", code=code, held=(await hg.locks.show("child")).held)

    asyncio.run(parent())


def spawned(url: str, options: dict[str, str]) -> None:
    with HeadgateSync(url, **options) as hg, hg.lock("child", ttl=TTL, wait=10) as held:
        say("child", fence=held.fence > 0)


def spawn(client: HeadgateSync, url: str, options: dict[str, str]) -> None:
    context = multiprocessing.get_context("spawn")
    with client as hg:
        with hg.lock("parent", ttl=TTL):
            child = context.Process(target=spawned, args=(url, options))
            child.start()
            child.join()
        try:
            context.Process(target=print, args=(client,)).start()
        except TypeError as error:
            say("parent", code=child.exitcode, sent=str(error))


def main(case: str, way: str, url: str, token: str, prefix: str) -> None:
    options = {"token": token, "prefix": prefix}
    match case:
        case "sync":
            sync(way, HeadgateSync(url, **options))
        case "async":
            asynchronous(way, Headgate(url, token=token, prefix=prefix))
        case _:
            spawn(HeadgateSync(url, **options), url, options)


if __name__ == "__main__":
    main(*sys.argv[1:])
