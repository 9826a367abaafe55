"""The validated settings that the rest of the program uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.common.modes import Mode, SaveInterval
from clusterctl.config.host_sources import HostSource
from clusterctl.config.hosts import Host
from clusterctl.config.values import Best, Restarts


@dataclass(frozen=True)
class Settings:
    """The settings of conf.py, one lower-case field each; `table.py` has their meanings and defaults.

    Paths on this machine (`ssh_config`, `identity_file`, `known_hosts`, a host's `identity`) are absolute,
    with `~` expanded; paths on nodes (`root_dir`) keep their `~`. `hosts` is empty while a scheduler has not been asked
    for them (`hosts_from`). `source` is the conf.py, or None if the
    values came from elsewhere; `lines` maps a setting to its line there. `chosen` has the text of each setting that
    `start --set` overrides, and `warnings` a line for each assigned setting that no longer has an effect. Mappings are
    read-only.
    """

    hosts: tuple[Host, ...]
    root_dir: str
    python: str
    trainer_command: tuple[str, ...]
    pserver_command: tuple[str, ...] | None
    env: Mapping[str, str] = field(hash=False, repr=False)
    ld_library_path: str | None
    use_gpu: bool
    shards: tuple[str, ...]
    pservers: int | tuple[str, ...] | None
    trainers: int | tuple[str, ...] | None
    pservers_per_node: int
    trainers_per_node: int
    trainer_threads: int
    sbatch: tuple[str, ...]
    exclusive: bool
    report: bool
    before_start: str | None
    after_end: str | None
    nic: str | None
    port: int
    ports_num: int
    ports_num_for_sparse: int
    ssh_config: Path | None
    identity_file: Path | None
    known_hosts: Path | None
    strict_host_keys: bool
    mode: Mode
    seed: int
    engine: str
    ps_security: str
    relay: str
    via: str | tuple[str, ...]
    heartbeat_s: float
    node_grace_s: float
    grace_s: float
    restarts: Restarts
    on_trainer_loss: str
    save_every: SaveInterval
    save_model_every: SaveInterval | None
    keep: int
    keep_models: int | None
    copies: int
    model_on_lead_mb: int
    keep_best: Best | None
    stall_s: float
    on_stall: str
    on_nan: str
    time_limit_s: float | None
    memory_limit_mb: int | None
    open_files: int | None
    wire: str
    key_cache: bool
    hosts_from: HostSource | None = None
    source: Path | None = None
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    chosen: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def place(self, name: str) -> str:
        """Return the location of the setting `name` as a prefix for messages, `conf.py:12: `, or "" without a file."""
        if name in self.chosen:
            return f"--set {name}: "
        if self.source is None:
            return ""
        line = self.lines.get(name)
        return f"{self.source}: " if line is None else f"{self.source}:{line}: "
