"""A lock that SQLite itself checks: the late write of a holder who slept is refused.

    python examples/fenced_sqlite.py valkey://localhost:6379/0

Two holders take the same lock. The first sleeps past its lease, as a process does that is swapped out, and then tries to
write. The table remembers the highest fence it has seen, so the write changes no row.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time

from headgate.sdk import Headgate, LockLost

SCHEMA = "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0)"

# The whole guard: the fence is compared and stored in the same statement as the write.
WRITE = "UPDATE account SET balance = :balance, fence = :fence WHERE id = :id AND fence <= :fence"


def write_balance(database: sqlite3.Connection, balance: int, fence: int) -> bool:
    """Write under a fence; False if a newer holder has written."""
    with database:
        return database.execute(WRITE, {"id": 1, "balance": balance, "fence": fence}).rowcount == 1


def stand_still() -> None:
    """Stop the whole process, event loop and all: nobody can renew, and nobody can be told."""
    time.sleep(1.5)


async def main(url: str) -> None:
    database = sqlite3.connect(":memory:")
    database.execute(SCHEMA)
    database.execute("INSERT INTO account (id, balance) VALUES (1, 100)")

    async with Headgate(url) as hg:
        first_fence = 0
        try:
            async with hg.lock("account-1", ttl=1) as first:
                first_fence = first.fence
                stand_still()
                _ = first.fence  # looking at the fence is how a holder that slept finds out
        except LockLost as lost:
            print(f"first holder:  {lost}")

        async with hg.lock("account-1", ttl=5) as second:
            print(f"second holder: wrote 70: {write_balance(database, 70, second.fence)}")

        # A holder that does not look is caught by the table.
        print(f"first holder:  wrote 90 late: {write_balance(database, 90, first_fence)}")

    (balance,) = database.execute("SELECT balance FROM account WHERE id = 1").fetchone()
    print(f"balance: {balance}")
    database.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/fenced_sqlite.py URL, a store's such as valkey://localhost:6379/0")
    asyncio.run(main(sys.argv[1]))
