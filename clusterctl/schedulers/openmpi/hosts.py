"""`HOSTS = openmpi("hostfile")`: the hosts of a file, and their slots as trainers, reached as VIA says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from clusterctl.config import Host, Settings
from clusterctl.config.host_sources import OpenMpiHosts
from clusterctl.config.hosts import read_hosts
from clusterctl.errors import ConfigError
from clusterctl.schedulers.openmpi.hostfile import HostfileError, HostLine, parse


def with_hosts(settings: Settings, source: OpenMpiHosts, environ: Mapping[str, str]) -> Settings:
    """Return the settings with the hosts of the file, in its order.

    If conf.py sets TRAINERS_PER_NODE, that counts, not the slots. Raises ConfigError with the file and the line.
    """
    path = _place(settings, str(source.file), environ)
    try:
        lines = parse(path.read_text(encoding="utf-8"))
    except OSError as exc:
        hint = "a relative path starts at the directory of conf.py"
        raise ConfigError(f"{settings.place('HOSTS')}{path}: {exc.strerror}", hint=hint) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{settings.place('HOSTS')}{path}: not a text file") from exc
    except HostfileError as exc:
        raise ConfigError(f"{path}:{exc.line}: {exc}", hint=exc.hint) from exc
    if not lines:
        raise ConfigError(f"{path}: names no hosts", hint="write one on each line, such as node1 slots=4")
    counts = "TRAINERS_PER_NODE" not in {*settings.lines, *settings.chosen}
    entries = [Host(one.endpoint, trainers=one.slots if counts else None) for one in lines]
    hosts, problems = read_hosts(entries, settings.root_dir, settings.via)
    if problems:
        raise ConfigError("\n".join(_located(path, lines, *problem) for problem in problems))
    return replace(settings, hosts=hosts)


def _place(settings: Settings, file: str, environ: Mapping[str, str]) -> Path:
    """Return the path of the hostfile; a relative one starts at the directory of conf.py."""
    base = settings.source.absolute().parent if settings.source else Path.cwd()
    if file.startswith("~/") and environ.get("HOME"):
        return Path(environ["HOME"], file[2:])
    return base / file


def _located(path: Path, lines: list[HostLine], index: int | None, message: str) -> str:
    return f"{path}: {message}" if index is None else f"{path}:{lines[index].line}: {message}"
