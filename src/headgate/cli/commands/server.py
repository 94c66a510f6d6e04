"""`headgate server …`: the servers that offer seats in a queue."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headgate.cli import output
from headgate.cli.error_advice import instead, no_queue
from headgate.cli.options import Json
from headgate.cli.target import Url, target
from headgate.waiting_room.problems import QueueUnknown

Namespace = Annotated[str, Parameter(name="--namespace", help="The queue's namespace.")]


async def list_servers(
    queue: str = "main", *, namespace: Namespace = "default", url: Url = None, json: Json = False
) -> None:
    """Show every live server of a queue and its seats.

    Parameters
    ----------
    queue
        The queue.
    json
        Print JSON.
    """
    client = target(url)
    client.namespace = namespace
    async with client as headgate:
        with instead(QueueUnknown, no_queue(queue)):
            found = await headgate.queue.servers(queue)
    if json:
        output.as_json(found.servers)
        return
    output.table(
        ("server", "address", "sessions", "holds", "capacity", "at most", "state"),
        [
            (
                *(each.instance_id, each.address, str(each.sessions), str(each.holds)),
                *(str(each.capacity), str(each.max_capacity)),
                "draining" if each.draining else "open" if each.reported else "not reported yet",
            )
            for each in found.servers
        ],
        empty=f"No server offers seats in {queue}.",
    )
