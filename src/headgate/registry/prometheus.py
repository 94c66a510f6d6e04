"""Instances for Prometheus: their numeric metrics as an exposition, and their addresses as targets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from headgate.registry.model import Instance
from headgate.registry.registry import Registry
from headgate.registry.wire import TargetGroup

MOST_LINES: Final = 20_000
NAME: Final = "headgate_instance_performance"
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


async def exposition(registry: Registry, namespace: str) -> str:
    """Format every number that instances report, up to a limit of lines."""
    lines = [f"# HELP {NAME} What instances report of themselves.", f"# TYPE {NAME} gauge"]
    async for instance in _everyone(registry, namespace):
        for name, value in instance.metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            labels = {
                "namespace": namespace, "type": instance.type, "group": instance.group,
                "instance_id": instance.instance_id, "name": name,
            }  # fmt: skip
            written = ",".join(f'{key}="{text.translate(_ESCAPED)}"' for key, text in labels.items())
            lines.append(f"{NAME}{{{written}}} {value}")
        if len(lines) > MOST_LINES:
            lines = [*lines[:MOST_LINES], "# there are more; this list is bounded"]
            break
    return "\n".join(lines) + "\n"


async def target_groups(registry: Registry, namespace: str) -> list[TargetGroup]:
    """List every instance that has an address as a target, with labels."""
    groups = []
    async for instance in _everyone(registry, namespace):
        if not instance.address or instance.port is None:
            continue
        host = f"[{instance.address}]" if ":" in instance.address else instance.address
        labels = {
            "__meta_headgate_namespace": namespace, "__meta_headgate_type": instance.type,
            "__meta_headgate_group": instance.group, "__meta_headgate_instance_id": instance.instance_id,
            "__meta_headgate_healthy": str(instance.healthy).lower(),
        }  # fmt: skip
        for key, value in instance.metadata.items():
            if isinstance(value, str):
                plain = "".join(sign if sign.isascii() and sign.isalnum() else "_" for sign in key)
                labels[f"__meta_headgate_metadata_{plain}"] = value
        groups.append(TargetGroup([f"{host}:{instance.port}"], labels))
        if len(groups) >= MOST_LINES:
            break
    return groups


async def _everyone(registry: Registry, namespace: str) -> AsyncIterator[Instance]:
    for thing in await registry.index.list(namespace):
        for instance in (await registry.read_service(thing)).instances:
            yield instance
