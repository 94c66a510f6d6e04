"""Locks: alone, handed over, and merely waited for, against redis-py, aioredlock, python-redis-lock, pottery and
etcd's mutex."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from valkey import Valkey

from bench import peers
from bench.cores import CORES, pinned
from bench.harness import ROOT, bench_store, cpu_seconds, progress
from bench.report import publish
from tests.topology import HOST, Standalone, free_port, reaper, wait_until

OURS: Final = "headgate"
ETCD: Final = "etcd"
WAITERS: Final = 10


class Peer:
    """A program that measures one kind of lock, against the store or etcd."""

    def __init__(self, name: str, command: Sequence[str], port: int, server_pid: int) -> None:
        self.name = name
        self.port = port
        self.server_pid = server_pid
        self._command = command

    def start(self, case: str, seconds: float, number: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, case, str(self.port), str(seconds), str(number)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, preexec_fn=pinned(CORES.server),
        )  # fmt: skip

    def run(self, case: str, seconds: float, number: int = 1) -> dict[str, Any]:
        """Run one case and give what it measured."""
        process = self.start(case, seconds, number)
        output, _ = process.communicate(timeout=seconds * 4 + 60)
        if process.returncode:
            raise SystemExit(f"bench: {self.name} failed in {case}")
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found


@contextmanager
def etcd() -> Iterator[subprocess.Popen[bytes] | None]:
    """Run an etcd of one member, where there is one."""
    program = shutil.which("etcd") or "/usr/bin/etcd"
    if not shutil.which(program):
        progress("no etcd here: its mutex is left out")
        yield None
        return
    directory, client, peer = reaper().directory("etcd"), free_port(), free_port()
    url, peer_url = f"http://{HOST}:{client}", f"http://{HOST}:{peer}"
    command = [
        program,
        "--data-dir",
        str(directory / "data"),
        "--listen-client-urls",
        url,
        "--advertise-client-urls",
        url,
    ]
    command += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
    command += ["--initial-cluster", f"default={peer_url}"]
    with (directory / "log").open("wb") as output:
        process = reaper().spawn(command, output)
    process.args = [str(client)]
    try:
        wait_until(lambda: "ready to serve client requests" in (directory / "log").read_text(), 30, "etcd is ready")
        yield process
    finally:
        process.kill()
        process.wait()


def contestants(store: Standalone, etcd_process: subprocess.Popen[bytes] | None) -> list[Peer]:
    """Name who takes part."""
    port, pid = store.node.port, store.node.pid
    found = [Peer(OURS, [sys.executable, "-m", "bench.contestants.locks"], port, pid)]
    program = str(peers.PYTHON / "locks.py")
    kinds = ("redis-py", "aioredlock", "python-redis-lock", "pottery")
    found += [Peer(kind, [*peers.python("python"), program, kind], port, pid) for kind in kinds]
    if etcd_process is not None:
        own = int(str(etcd_process.args[0]))  # type: ignore[index]
        found.append(Peer(ETCD, [*peers.python("python"), program, ETCD], own, etcd_process.pid))
    return found


def count_commands(store: Standalone, peer: Peer, case: str, seconds: float, number: int) -> tuple[int, dict[str, Any]]:
    """Count what a peer sends while it runs a case; what scripts call inside the server is not counted."""
    sent = 0
    counting, stop = threading.Event(), threading.Event()
    if case != "waiting":
        counting.set()
    watcher = Valkey(**{**store.node.admin_options(), "socket_timeout": None})
    with watcher.monitor() as monitor:  # type: ignore[no-untyped-call]

        def listen() -> None:
            nonlocal sent
            for command in monitor.listen():
                if stop.is_set():
                    return
                own = command["client_type"] == "lua" or command["command"].startswith(("PING", "INFO", "TIME"))
                sent += counting.is_set() and not own

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        process = peer.start(case, seconds, number)
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            last = line
            if line == "waiting\n":
                counting.set()
            elif line == "over\n":
                counting.clear()
        process.wait()
        stop.set()
        store.node.command("PING")
        listener.join(5)
    watcher.close()  # type: ignore[no-untyped-call]
    return sent, json.loads(last)


def race(peers_: Sequence[Peer], case: str, number: int, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Run one case with everybody in alternating rounds and give the medians."""
    taken: dict[str, list[dict[str, float]]] = {peer.name: [] for peer in peers_}
    for turn in range(rounds):
        for peer in peers_ if turn % 2 == 0 else reversed(peers_):
            before = cpu_seconds(peer.server_pid)
            found = peer.run(case, seconds, number)
            server = cpu_seconds(peer.server_pid) - before
            pairs = max(found["pairs"], 1)
            figures = {
                "pairs/s": pairs / found["seconds"],
                "CPU µs": found["cpu"] / pairs * 1e6,
                "server CPU µs": server / (pairs + found.get("warm", 0)) * 1e6,
            }
            if "handed" in found:
                handed = sorted(found["handed"]) or [float("nan")]
                figures |= {"p50 ms": handed[len(handed) // 2] * 1e3, "p99 ms": handed[int(len(handed) * 0.99)] * 1e3}
            taken[peer.name].append(figures)
            progress(f"{case}: round {turn + 1} of {rounds}, {peer.name}: {figures['pairs/s']:,.0f}/s")
    return {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]} for name, found in taken.items()
    }


def show(title: str, found: Mapping[str, Mapping[str, float]], what: str = "lock") -> None:
    """Print one table."""
    table = Table(title=title, title_justify="left")
    table.add_column(what)
    headings = list(next(iter(found.values())))
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, figures in found.items():
        table.add_row(name, *(f"{figures[heading]:,.2f}" for heading in headings))
    Console(width=None if Console().is_terminal else 140).print(table)


def main(arguments: Sequence[str]) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="./dev bench locks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="of each round")
    options = parser.parse_args(arguments)
    figures: dict[str, float | str] = {}
    with bench_store() as store, etcd() as etcd_process:
        everybody = contestants(store, etcd_process)
        on_store = [peer for peer in everybody if peer.name != ETCD]
        cases = (
            ("alone", "one lock, nobody else wants it", 1),
            ("many", "50 locks side by side", 50),
            ("contended", f"one lock, {WAITERS} want it: from giving back to having it", WAITERS),
        )
        for case, title, number in cases:
            found = race(everybody, case, number, options.rounds, options.seconds)
            for peer in on_store:
                sent, said = count_commands(store, peer, case, 1.0, number)
                found[peer.name]["commands/pair"] = sent / max(said["pairs"], 1)
            for name in found:
                found[name].setdefault("commands/pair", float("nan"))
                figures |= {f"{case}, {name}, {key}": value for key, value in found[name].items()}
            show(title, found)
        waiting = {
            peer.name: {"commands/s": count_commands(store, peer, "waiting", 3.0, WAITERS)[0] / 3} for peer in on_store
        }
        figures |= {f"waiting, {name}, commands/s": found["commands/s"] for name, found in waiting.items()}
        show(f"{WAITERS} wait and nothing happens", waiting)
        ours = everybody[0]
        for case, what, sizes in (("contended", "waiters", (1, 10, 100, 1000)), ("many", "locks", (1, 100, 10_000))):
            grown = {f"{size:,}": race([ours], case, size, 1, options.seconds)[OURS] for size in sizes}
            figures |= {f"{size} {what}, {key}": value for size, found in grown.items() for key, value in found.items()}
            show(f"how cost grows with {what}", grown, what)
    for peer in everybody[1:]:
        for case in ("alone", "many"):
            ratio = float(figures[f"{case}, {OURS}, pairs/s"]) / float(figures[f"{case}, {peer.name}, pairs/s"])
            figures[f"{case}, speed against {peer.name}"] = ratio
    publish("locks", OURS, [], figures)
