"""The command-line options that several commands share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", negative=())]
Leash = Annotated[bool, Parameter(show=False, negative=(), help="Stop when stdin ends.")]
StoreUrl = Annotated[str | None, Parameter(name="--store", help="The store's URL.")]
Host = Annotated[str | None, Parameter(name="--host", help="Address to listen on.")]
OpsPort = Annotated[int | None, Parameter(name="--ops-port", help="Port for probes and metrics.")]
