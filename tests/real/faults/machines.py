"""Machines made of namespaces (processes, network, host name and mounts), each with a disk that outlives it.

Everything depends on processes: the kernel resources of a machine go with its first process, and that one exits when
this program does, even by kill -9. Nothing has a name in the host system.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterctl.fake.sshd import config_text
from support.openssh import find_sshd, make_key
from support.processes import Proc, is_alive, kill_all, wait_until

DISK_MB = 192
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
LISTENING = "0A"
HALF_WRITTEN = re.compile(r"\..+(\.\d+|-\w{8})")  # a temporary file that is about to be renamed
# The first process of a machine: it reaps orphans, as every init process does.
FIRST = "import os, time\nwhile True:\n    try: os.wait()\n    except ChildProcessError: time.sleep(0.05)\n"


def popen(*argv: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a process of the laboratory itself, which dies with this one."""
    with log.open("ab") as output:
        return subprocess.Popen([*DIES_WITH_US, *argv], stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()


class Disks:
    """One small file system per machine, in a separate mount namespace. `seen` is its path for this program."""

    def __init__(self, directory: Path, names: list[str]) -> None:
        mounts = [f"mount -t tmpfs -o size={DISK_MB}m,mode=755 none {directory / name}" for name in names]
        for name in names:
            (directory / name).mkdir()
        script = " && ".join([*mounts, f"touch {directory / 'mounted'}", "exec sleep infinity"])
        log = directory / "disks.log"
        self._keeper = popen("unshare", "--mount", "--propagation", "private", "sh", "-c", script, log=log)
        if not wait_until((directory / "mounted").exists):
            raise RuntimeError(f"no disks: {log.read_text()}")

    @property
    def pid(self) -> int:
        return self._keeper.pid

    def seen(self, path: Path) -> Path:
        return Path(f"/proc/{self.pid}/root{path}")

    def close(self) -> None:
        end(self._keeper)


class Cable:
    """The switch that connects all machines."""

    def __init__(self, directory: Path, seed: str) -> None:
        program = str(Path(__file__).with_name("switch.py"))
        self._log = directory / "switch.log"
        with self._log.open("ab") as log:
            self._switch = subprocess.Popen(
                [*DIES_WITH_US, sys.executable, program, seed],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def send(self, **order: object) -> None:
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        self._switch.stdin.write(json.dumps(order) + "\n")
        self._switch.stdin.flush()
        assert self._switch.stdout.readline() == "ok\n", self._log.read_text()

    def close(self) -> None:
        with self._switch:
            self._switch.kill()


@dataclass(frozen=True)
class Place:
    """The properties that a machine keeps while it is switched off."""

    name: str
    address: str
    mac: str
    directory: Path  # the directory of its sshd
    disk: Path  # the path inside the machine


class Machine:
    """A machine, switched on by each `boot`. `pid` is that of its first process in the namespace of this program."""

    def __init__(self, place: Place, disks: Disks, cable: Cable, authorized: Path | None) -> None:
        self.place = place
        self.pid = 0
        self.clock_off_s = 0
        self._disks = disks
        self._cable = cable
        self._authorized = authorized
        self._unshare: subprocess.Popen[bytes] | None = None
        self._sshd: subprocess.Popen[bytes] | None = None
        place.directory.mkdir()
        make_key(place.directory / "host_key")

    @property
    def is_on(self) -> bool:
        return self.pid != 0 and is_alive(self.pid)

    @property
    def home(self) -> Path:
        """The path of its home inside the machine."""
        return self.place.disk / "home"

    @property
    def log(self) -> Path:
        return self.place.directory / "log"

    def set_clock(self, off_s: int) -> None:
        """Set its time of day wrong by `off_s` seconds; this reboots it."""
        if off_s != self.clock_off_s:
            self.clock_off_s = off_s
            self.boot()

    def boot(self) -> None:
        self.power_off()
        up = self.place.directory / "up"
        up.unlink(missing_ok=True)
        script = (
            f"hostname {self.place.name}; mount -t tmpfs none /dev/shm; "
            f"mkdir -p /run/sshd {self.home} {self.temporary}; "
            f"echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; touch {up}; exec {sys.executable} -I -S -c '{FIRST}'"
        )
        own = ["--net", "--uts", "--ipc", "--pid", "--mount", "--propagation", "private", "--mount-proc"]
        inside = ["unshare", *own, "--fork", "--kill-child", "sh", "-c", script]
        self._unshare = popen("nsenter", "-t", str(self._disks.pid), "-m", "--", *inside, log=self.log)
        if not wait_until(lambda: up.exists() and bool(_children(self._unshare))):
            raise RuntimeError(f"{self.place.name} does not come up: {self.log.read_text()}")
        (self.pid,) = _children(self._unshare)
        self._cable.send(plug=[self.place.name, self.pid, self.place.address, self.place.mac])
        if self._authorized is not None:
            self.start_sshd()

    @property
    def temporary(self) -> Path:
        return self.place.disk / "tmp"

    def start_sshd(self) -> None:
        assert self._authorized is not None
        variables = {"HOME": str(self.home), "TMPDIR": str(self.temporary), **self._clock()}
        config = self.place.directory / "sshd_config"
        own = f"ListenAddress {self.place.address}"
        config.write_text(
            config_text(22, self.place.directory / "host_key", self._authorized, variables, first=[own, "Port 22"])
        )
        self._sshd = popen(*self.inside(), find_sshd(), "-D", "-e", "-f", str(config), log=self.log)
        if not wait_until(lambda: 22 in self.listening()):
            raise RuntimeError(f"no sshd on {self.place.name}: {self.log.read_text()}")

    def _clock(self) -> dict[str, str]:
        """Return the environment that sets the time of day wrong for everything that sshd starts."""
        if not self.clock_off_s:
            return {}
        library = self.place.directory / "clock.so"
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", library, source], check=True)
        return {"LD_PRELOAD": str(library), "CLOCK_OFF_S": str(self.clock_off_s)}

    def stop_sshd(self, *, sessions: bool) -> None:
        """Kill the server with SIGKILL, and its sessions too if `sessions`."""
        of_sshd = [proc for proc in self._all() if _is_sshd(proc)]
        kill_all(proc.pid for proc in of_sshd if sessions or "listener" in proc.command)
        end(self._sshd)

    def inside(self) -> list[str]:
        """Return the prefix of a command that is to run on it."""
        return ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "--"]

    def empty_disk(self) -> None:
        """Lose everything on its disk. It is off, or has another disk at its next boot."""
        for path in self._disks.seen(self.place.disk).iterdir():
            shutil.rmtree(path)

    def power_off(self) -> None:
        """Unplug the network first, since the kernel closes connections of killed processes; the disk is kept."""
        if self.pid:
            self._cable.send(unplug=self.place.name)
            kill_all([self.pid])
            wait_until(lambda: not is_alive(self.pid))  # it exits after all others
            end(self._sshd)
            end(self._unshare)
            self.pid = 0

    def _all(self) -> Iterator[Proc]:
        """Yield all live processes except the first one, with pids in the namespace of this program."""
        with contextlib.suppress(OSError):
            mine = Path(f"/proc/{self.pid}/ns/pid").readlink()
            for entry in Path("/proc").iterdir():
                with contextlib.suppress(OSError):
                    if entry.name.isdigit() and (entry / "ns/pid").readlink() == mine and int(entry.name) != self.pid:
                        words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                        if words and is_alive(int(entry.name)):
                            yield Proc(int(entry.name), words)

    def processes(self) -> list[Proc]:
        """Return its processes except the SSH server."""
        return [proc for proc in self._all() if not _is_sshd(proc)] if self.is_on else []

    def listening(self) -> set[int]:
        """Return the TCP ports that are being listened on."""
        with contextlib.suppress(OSError):
            rows = [row.split() for row in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]]
            return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == LISTENING}
        return set()

    def remains(self, *, half_written: bool = True) -> list[str]:
        """Return leftover ports, shared memory, sockets, temporary files, and half-written ones if they count."""
        if not self.is_on:
            return []
        ports = [f"port {port}" for port in sorted(self.listening() - {22})]
        memory = [str(path) for path in Path(f"/proc/{self.pid}/root/dev/shm").iterdir()]
        temporary = [str(path) for path in self._temporary_files(half_written)]
        sockets = [line.split()[-1] for line in Path(f"/proc/{self.pid}/net/unix").read_text().splitlines()]
        return ports + memory + temporary + [name for name in sockets if name.startswith("@")]

    def fill_disk(self) -> None:
        """Write until there is no space left."""
        with (self._disks.seen(self.place.disk) / "filler").open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(1 << 16))
            except OSError as exc:
                assert exc.errno == errno.ENOSPC, exc  # noqa: PT017 - the expected error

    def _temporary_files(self, half_written: bool = True) -> list[Path]:
        runs = self._disks.seen(self.home).glob("clusterctl/*/.clusterctl/runs/**/.*")
        half = [path for path in runs if half_written and HALF_WRITTEN.fullmatch(path.name)]
        return [*self._disks.seen(self.temporary).iterdir(), *half]

    def tidy(self) -> None:
        """Remove everything that `remains` reports."""
        for path in self._temporary_files():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.boot()

    def free_disk(self) -> None:
        (self._disks.seen(self.place.disk) / "filler").unlink(missing_ok=True)


def _is_sshd(proc: Proc) -> bool:
    return proc.command.split()[0].rpartition("/")[2].startswith("sshd")


def _children(process: subprocess.Popen[bytes] | None) -> list[int]:
    if process is None:
        return []
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    return []


def enough_rights() -> str:
    """Return the reason why machines cannot be made here, or an empty string if they can."""
    if os.getuid() != 0:
        return "needs root, for namespaces of processes, network and mounts"
    if not Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    done = subprocess.run(
        ["unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", "ip", "link"],
        capture_output=True,
        check=False,
    )
    return "" if done.returncode == 0 else f"cannot make namespaces: {done.stderr.decode(errors='replace')}"
