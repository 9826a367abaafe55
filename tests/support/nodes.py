"""The minimal settings and nodes that the transport needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clusterctl.config.carriers import LEAVE_NOTHING, carrier_name


@dataclass(frozen=True)
class TestSettings:
    __test__ = False

    ssh_config: Path | None
    identity_file: Path | None
    known_hosts: Path | None
    strict_host_keys: bool = True


@dataclass(frozen=True)
class TestNode:
    __test__ = False

    label: str
    ssh_port: int | None
    ssh_host: str = "127.0.0.1"
    ssh_user: str | None = None
    identity: Path | None = None
    via: str | tuple[str, ...] = "ssh"

    @property
    def carrier(self) -> str:
        return carrier_name(self.via)

    @property
    def leaves_nothing(self) -> bool:
        return self.carrier in LEAVE_NOTHING
