"""Settings of the waiting room."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headgate.kit.settings import Doc, Settings


class WaitingRoomSettings(Settings, section="waiting_room"):
    """Settings for all queues of a process; the policy of one queue is in the store."""

    proof_secret: Annotated[
        str, Doc("the secret with which a site signs its users' proofs (HS256); empty: none", secret=True)
    ] = ""
    proof_keys: Annotated[str, Doc("a JWKS with the public Ed25519 keys of a site that signs proofs; empty: none")] = ""
    step_people: Annotated[
        int, Meta(ge=1, le=500), Doc("people that one promotion call touches at most; the store is busy that long")
    ] = 200
    finished_most: Annotated[int, Meta(ge=0), Doc("people of a queue who are remembered after they are done")] = 100_000
