"""The settings of the relay."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headgate.kit.settings import Doc, SettingInvalid, Settings


class RelaySettings(Settings, section="relay"):
    """The secrets for upstreams, and the limits of what a relay buffers and keeps."""

    port: Annotated[int, Meta(ge=0, le=65535), Doc("port of the relay; 0 takes a free one")] = 8082
    workers: Annotated[int, Meta(ge=1, le=256), Doc("processes that relay requests")] = 1
    secrets: Annotated[
        str,
        Doc("values for {secret:NAME} in an upstream's headers: a JSON object of names and texts", secret=True),
    ] = ""
    refused_networks: Annotated[
        tuple[str, ...],
        Doc("networks to which no upstream may resolve: link-local and metadata addresses, unless changed"),
    ] = ("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/128", "fe80::/10", "ff00::/8", "fd00:ec2::254/128")
    buffer_bytes: Annotated[int, Meta(ge=0), Doc("how much of a body is read while its request waits")] = 65_536
    job_bytes: Annotated[int, Meta(ge=0), Doc("the largest body of a job, and of a job's answer")] = 1_048_576
    job_keep_seconds: Annotated[int, Meta(ge=1), Doc("how long the result of a job is kept")] = 3600
    most_jobs: Annotated[int, Meta(ge=1), Doc("how many jobs of one upstream may wait")] = 100_000
    job_days: Annotated[
        float, Meta(gt=0, le=365), Doc("for how many days a job may wait to be sent, unless it says less itself")
    ] = 7.0
    held_jobs: Annotated[int, Meta(ge=1), Doc("how many jobs of one upstream a process holds at once")] = 2_000
    drain_seconds: Annotated[
        float, Meta(ge=0), Doc("how long a stopping relay finishes requests that wait or are in flight")
    ] = 30.0

    @property
    def job_ms(self) -> int:
        """Return the longest time that a job may wait, in milliseconds."""
        return round(self.job_days * 86_400_000)

    def secrets_by_name(self) -> dict[str, str]:
        """Decode the secrets; raises SettingInvalid, whose message does not contain them."""
        try:
            return msgspec.json.decode(self.secrets, type=dict[str, str]) if self.secrets else {}
        except msgspec.DecodeError:
            raise SettingInvalid("relay.secrets must be a JSON object of names and texts.") from None
