"""Other locks as contestants: `python locks.py KIND CASE PORT SECONDS NUMBER` prints what it measured."""

import asyncio
import base64
import http.client
import json
import sys
import threading
import time
from contextlib import contextmanager

HOLD_SECONDS = 0.001


class RedisPy:
    """redis-py's asyncio Lock with a TTL, as its documentation shows it."""

    def __init__(self, port):
        import redis.asyncio

        self.client = redis.asyncio.Redis(port=port, max_connections=10_000)

    def lock(self, name):
        return self.client.lock(name, timeout=10)

    async def close(self):
        await self.client.aclose()


class Aioredlock:
    """aioredlock on one server, as its documentation shows it."""

    def __init__(self, port):
        import aioredlock

        self.manager = aioredlock.Aioredlock([("127.0.0.1", port)], retry_count=1000)

    def lock(self, name):
        return AioredlockLock(self.manager, name)

    async def close(self):
        await self.manager.destroy()


class AioredlockLock:
    """Aioredlock's own `async with` gives up after three tries; taking it by hand waits as the others do."""

    def __init__(self, manager, name):
        self.manager = manager
        self.name = name

    async def acquire(self):
        self.held = await self.manager.lock(self.name, lock_timeout=10)

    async def __aenter__(self):
        await self.acquire()

    async def __aexit__(self, *_):
        await self.manager.unlock(self.held)


class PythonRedisLock:
    def __init__(self, port):
        import redis

        self.client = redis.Redis(port=port, max_connections=10_000)

    def lock(self, name):
        import redis_lock

        return redis_lock.Lock(self.client, name, expire=10)


class Pottery:
    def __init__(self, port):
        import redis

        self.client = redis.Redis(port=port, max_connections=10_000)

    def lock(self, name):
        from pottery import Redlock

        return Redlock(key=name, masters={self.client}, auto_release_time=10)


class Etcd:
    """etcd's own mutex through its JSON gateway, with one lease for each thread."""

    def __init__(self, port):
        self.port = port
        self.own = threading.local()

    def call(self, path, **body):
        if not hasattr(self.own, "connection"):
            self.own.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.own.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return json.loads(self.own.connection.getresponse().read())

    @contextmanager
    def lock(self, name):
        if not hasattr(self.own, "lease"):
            self.own.lease = self.call("/v3/lease/grant", TTL=600)["ID"]
        key = base64.b64encode(name.encode()).decode()
        held = self.call("/v3/lock/lock", name=key, lease=self.own.lease)["key"]
        try:
            yield
        finally:
            self.call("/v3/lock/unlock", key=held)


async def race_tasks(source, names, tasks, seconds):
    done = 0
    end = time.monotonic() + seconds

    async def work(first):
        nonlocal done
        n = first
        while time.monotonic() < end:
            async with source.lock(names[n % len(names)]):
                pass
            n += tasks
            done += 1

    began, cpu = time.monotonic(), time.process_time()
    await asyncio.gather(*(work(n) for n in range(tasks)))
    return {"pairs": done, "seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}


async def contend_tasks(source, seconds, waiters):
    handed, released, end = [], 0.0, time.monotonic() + seconds

    async def work():
        nonlocal released
        while time.monotonic() < end:
            async with source.lock("contended"):
                if released:
                    handed.append(time.monotonic() - released)
                await asyncio.sleep(HOLD_SECONDS)
                released = time.monotonic()

    cpu = time.process_time()
    await asyncio.gather(*(work() for _ in range(waiters)))
    return {"handed": handed, "cpu": time.process_time() - cpu, "pairs": len(handed) + 1, "seconds": seconds}


async def wait_tasks(source, seconds, waiters):
    first = source.lock("waiting")
    await first.__aenter__()
    tasks = [asyncio.create_task(source.lock("waiting").acquire()) for _ in range(waiters)]
    await asyncio.sleep(0.5)
    print("waiting", flush=True)
    await asyncio.sleep(seconds)
    print("over", flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await first.__aexit__(None, None, None)
    return {}


def race_threads(source, names, threads, seconds):
    done = [0] * threads
    end = time.monotonic() + seconds

    def work(first):
        n = first
        while time.monotonic() < end:
            with source.lock(names[n % len(names)]):
                pass
            n += threads
            done[first] += 1

    began, cpu = time.monotonic(), time.process_time()
    run_threads(work, range(threads))
    return {"pairs": sum(done), "seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}


def contend_threads(source, seconds, waiters):
    handed, released, end = [], [0.0], time.monotonic() + seconds

    def work(_):
        while time.monotonic() < end:
            with source.lock("contended"):
                if released[0]:
                    handed.append(time.monotonic() - released[0])
                time.sleep(HOLD_SECONDS)
                released[0] = time.monotonic()

    cpu = time.process_time()
    run_threads(work, range(waiters))
    return {"handed": handed, "cpu": time.process_time() - cpu, "pairs": len(handed) + 1, "seconds": seconds}


def wait_threads(source, seconds, waiters):
    def work(_):
        with source.lock("waiting"):
            pass

    with source.lock("waiting"):
        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(waiters)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        print("waiting", flush=True)
        time.sleep(seconds)
        print("over", flush=True)
    for thread in threads:
        thread.join()
    return {}


def run_threads(work, arguments):
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


KINDS = {
    "redis-py": RedisPy,
    "aioredlock": Aioredlock,
    "python-redis-lock": PythonRedisLock,
    "pottery": Pottery,
    "etcd": Etcd,
}


def main(kind, case, port, seconds, number):
    names = ["bench"] if case == "alone" else [f"bench-{n}" for n in range(number)]
    if kind in {"redis-py", "aioredlock"}:

        async def run():
            source = KINDS[kind](port)
            if case == "waiting":
                return await wait_tasks(source, seconds, number)
            if case == "contended":
                return await contend_tasks(source, seconds, number)
            found = await race_tasks(source, names, 1 if case == "alone" else min(number, 64), seconds)
            await source.close()
            return found

        return asyncio.run(run())
    source = KINDS[kind](port)
    if case == "waiting":
        return wait_threads(source, seconds, number)
    if case == "contended":
        return contend_threads(source, seconds, number)
    return race_threads(source, names, 1 if case == "alone" else min(number, 16), seconds)


if __name__ == "__main__":
    said = sys.argv[1:]
    print(json.dumps(main(said[0], said[1], int(said[2]), float(said[3]), int(said[4]))))
