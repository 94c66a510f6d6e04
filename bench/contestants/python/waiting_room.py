"""Seed 003's queue-api on FastAPI and redis-py as a Python user would write it: sections 4.1 and 4.2."""

import os
import time
import uuid

import redis.asyncio
from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field

app = FastAPI()
store = redis.asyncio.Redis(port=int(os.environ["STORE_PORT"]), decode_responses=True)


class EntryRequest(BaseModel):
    """The body of an entry."""

    model_config = ConfigDict(extra="forbid")
    nickname: str = Field(min_length=1, max_length=64)


class Status(BaseModel):
    """The status of a waiter."""

    status: str
    rank: int
    userId: str | None = None  # noqa: N815  # the name on the wire
    ticketId: str | None = None  # noqa: N815


@app.get("/")
async def root() -> dict[str, str]:
    """Answer the harness's first question."""
    return {}


@app.post("/api/queue/entry")
async def entry(request: EntryRequest) -> Status:
    """Join the line."""
    user = str(uuid.uuid4())
    key = f"queue:waiting:user:{user}"
    async with store.pipeline(transaction=False) as pipe:
        pipe.zadd("queue:waiting", {user: int(time.time() * 1000)}, nx=True)
        pipe.hset(key, mapping={"userId": user, "nickname": request.nickname, "ticketId": ""})
        pipe.expire(key, 600)
        pipe.zrank("queue:waiting", user)
        *_, rank = await pipe.execute()
    return Status(status="WAITING", rank=rank + 1, userId=user)


@app.get("/api/queue/status")
async def status(user: str = Query(alias="userId", max_length=64)) -> Status:
    """Tell the rank of a user, or the ticket."""
    ticket = await store.hget(f"queue:waiting:user:{user}", "ticketId")
    rank = await store.zrank("queue:waiting", user)
    if ticket:
        return Status(status="PROMOTED", rank=0, ticketId=ticket)
    if rank is None:
        raise HTTPException(404)
    return Status(status="WAITING", rank=rank + 1, userId=user)
