"""Counts the forks that led to this process, so that a client can tell that its parent opened it.

A forked child has its parent's objects and sockets but none of its threads. If it used an inherited connection, it would wait
for ever, or take replies that belong to the parent. So clients compare `forks.count` with its value when they were opened.
"""

from __future__ import annotations

import os
import threading


class Forks:
    """The number of forks behind this process, and a lock that no thread of its parent can hold."""

    def __init__(self) -> None:
        self.count = 0
        self.opening = threading.Lock()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        self.count += 1
        self.opening = threading.Lock()


forks = Forks()
