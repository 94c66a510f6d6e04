"""Flags that several commands have."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", negative=())]
Leash = Annotated[bool, Parameter(show=False, negative=())]
