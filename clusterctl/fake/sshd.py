"""Real OpenSSH daemons of the current user: their configuration and their processes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from clusterctl.common.procfs import Identity, identify, own_pids, stat_fields
from clusterctl.errors import UsageError
from clusterctl.fake.layout import ADDRESS
from clusterctl.fake.programs import call, find_program

MISSING = "apt-get install openssh-server"


def find_sshd() -> str:
    """Return the path of sshd. Raises UsageError if sshd or ssh-keygen is missing."""
    sshd = find_program("sshd")
    for name, path in (("sshd", sshd), ("ssh-keygen", find_program("ssh-keygen"))):
        if path is None:
            raise UsageError(f"the ssh backend needs {name}", hint=MISSING)
    assert sshd is not None
    return sshd


def config_text(
    port: int,
    host_key: Path,
    authorized_keys: Path,
    environment: Mapping[str, str],
    *,
    path_first: Sequence[Path] = (),
    first: Sequence[str] = (),
) -> str:
    """Return the sshd_config of one node.

    A command runs with `environment` and with this Python in its PATH; it starts in the user's real home, as usual.
    For most settings the first line wins: the lines of `first` go before ours.
    """
    search = [*path_first, Path(sys.executable).parent, "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]
    variables = {**environment, "PATH": ":".join(map(str, search))}
    assignments = " ".join(f"{name}={_quoted(value)}" for name, value in variables.items())
    lines = [
        "MaxStartups 100:30:200",  # the only setting for which the last line wins
        *first,
        f"Port {port}",
        f"ListenAddress {ADDRESS}",
        f"HostKey {_quoted(str(host_key))}",
        "PidFile none",
        f"AuthorizedKeysFile {_quoted(str(authorized_keys).replace('%', '%%'))}",
        f"SetEnv {assignments}",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "MaxSessions 100",
        "PrintMotd no",
        "LogLevel VERBOSE",
        "Subsystem sftp internal-sftp",
    ]
    if openssh_version() >= (9, 8):
        lines.append("PerSourcePenalties no")
    return "\n".join(lines) + "\n"


@cache
def openssh_version() -> tuple[int, int]:
    match = re.search(r"OpenSSH_(\d+)\.(\d+)", call(["ssh", "-V"]).stderr)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def find_by_log(path: Path) -> list[Identity]:
    """Return every daemon whose log is `path` or below it, with its sessions and their newest children.

    sshd overwrites its environment with its title, so it cannot be found by that. Its standard error stays in place.
    """
    daemons = {pid for pid in own_pids() if _logs_to(pid, path)}
    return _identified([*daemons, *_children(daemons)])


def _logs_to(pid: int, path: Path) -> bool:
    try:
        log = Path(f"/proc/{pid}/fd/2").readlink()
    except OSError:
        return False
    return log.is_relative_to(path)


def _children(parents: set[int]) -> list[int]:
    return [pid for pid in own_pids() if pid not in parents and _parent(pid) in parents] if parents else []


def _parent(pid: int) -> int | None:
    fields = stat_fields(pid)
    return int(fields[1]) if fields else None


def _identified(pids: Iterable[int]) -> list[Identity]:
    processes = (identify(pid) for pid in pids)
    return [process for process in processes if process is not None]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
