"""Real OpenSSH daemons of the current user: what one is told, and which processes are its own."""

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
    """The path of sshd. Raises UsageError when it is missing, or what makes its keys."""
    sshd = find_program("sshd")
    for name, found in (("sshd", sshd), ("ssh-keygen", find_program("ssh-keygen"))):
        if found is None:
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
    """The sshd_config of one node.

    A command finds `environment`, and this Python in its PATH; it starts, as always, in the real home of the user.
    Of most settings the first one counts: `first` are lines that go before ours.
    """
    places = [*path_first, Path(sys.executable).parent, "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]
    variables = {**environment, "PATH": ":".join(map(str, places))}
    given = " ".join(f"{name}={_quoted(value)}" for name, value in variables.items())
    lines = [
        "MaxStartups 100:30:200",  # the one setting of which the last counts, not the first
        *first,
        f"Port {port}",
        f"ListenAddress {ADDRESS}",
        f"HostKey {_quoted(str(host_key))}",
        "PidFile none",
        f"AuthorizedKeysFile {_quoted(str(authorized_keys).replace('%', '%%'))}",
        f"SetEnv {given}",
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


def find_by_log(place: Path) -> list[Identity]:
    """Every daemon whose log is `place` or below it, with its sessions and what these have just begun.

    A sshd writes its title over its environment, which tells nothing then; its standard error stays with it.
    """
    daemons = {pid for pid in own_pids() if _logs_to(pid, place)}
    return _identified([*daemons, *_children(daemons)])


def _logs_to(pid: int, place: Path) -> bool:
    try:
        log = Path(f"/proc/{pid}/fd/2").readlink()
    except OSError:
        return False
    return log.is_relative_to(place)


def _children(parents: set[int]) -> list[int]:
    return [pid for pid in own_pids() if pid not in parents and _parent(pid) in parents] if parents else []


def _parent(pid: int) -> int | None:
    fields = stat_fields(pid)
    return int(fields[1]) if fields else None


def _identified(pids: Iterable[int]) -> list[Identity]:
    found = (identify(pid) for pid in pids)
    return [who for who in found if who is not None]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
