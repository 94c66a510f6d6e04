"""FastAPI and redis-py as a Python user would write it: the rank of a user, and one field of the user's hash."""

import os

import redis.asyncio
from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel

app = FastAPI()
store = redis.asyncio.Redis(port=int(os.environ["STORE_PORT"]), decode_responses=True)


class Status(BaseModel):
    """The status of a waiter."""

    status: str
    rank: int
    ticketId: str | None = None  # noqa: N815  # the name on the wire


@app.get("/")
async def root() -> dict[str, str]:
    """Answer the harness's first question."""
    return {}


@app.get("/api/queue/status")
async def status(user: str = Query(alias="userId", max_length=64)) -> Status:
    """Tell the rank of a user, or the ticket."""
    rank = await store.zrank("queue:waiting", user)
    ticket = await store.hget(f"queue:waiting:user:{user}", "ticketId")
    if rank is None and ticket is None:
        raise HTTPException(404)
    if ticket:
        return Status(status="PROMOTED", rank=0, ticketId=ticket)
    return Status(status="WAITING", rank=rank + 1)
