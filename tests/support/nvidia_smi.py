"""A stand-in for `nvidia-smi` that prints what the real program prints.

Each `Smi` has the output of `-L`, of our query for GPUs and of our query for processes. The rows have the values and
the form of published output of the real program, with the drivers named beside them; the UUIDs are made up. None of it
was recorded by us: no machine with a GPU was at hand.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

PREFIX = "GPU-5f3a7c10-9d2e-4b61-8a4f-0000000000"
MIG = "MIG-3b1c8e52-7f04-5a9d-9c6e-0000000000"


@dataclass(frozen=True)
class Smi:
    """Its outputs, its exit code, and if it hangs after it has printed them."""

    listed: str = ""
    gpus: str = ""
    users: str = ""
    code: int = 0
    hangs: bool = False

    def install(self, directory: Path) -> None:
        """Write the program into a directory of PATH."""
        directory.mkdir(parents=True, exist_ok=True)
        program = directory.resolve() / "nvidia-smi"
        outputs = {"-L": self.listed, "--query-gpu=*": self.gpus, "--query-compute-apps=*": self.users}
        cases = "\n".join(f"{name}) printf %s {shlex.quote(text)};;" for name, text in outputs.items())
        last = "sleep 600" if self.hangs else f"exit {self.code}"
        log = f'echo "$1" >>{shlex.quote(str(program))}.calls'
        program.write_text(f'#!/bin/sh\n{log}\ncase "$1" in\n{cases}\nesac\n{last}\n')
        program.chmod(0o755)

    def with_users(self, *users: tuple[int, int, int]) -> Smi:
        """Return it with processes: (index of the GPU, pid, MiB)."""
        return replace(self, users="".join(f"{uuid(at)}, {pid}, {mib}\n" for at, pid, mib in users))


def uuid(index: int) -> str:
    return f"{PREFIX}{index:02}"


def calls(directory: Path) -> list[str]:
    """Return the first argument of each call so far."""
    log = directory / "nvidia-smi.calls"
    return log.read_text().split() if log.exists() else []


def alike(count: int, name: str, total: object, used: object, utilization: object) -> Smi:
    return Smi(
        "".join(f"GPU {at}: {name} (UUID: {uuid(at)})\n" for at in range(count)),
        "".join(f"{at}, {uuid(at)}, {total}, {used}, {utilization}, {name}\n" for at in range(count)),
    )


# By card and driver.
A100 = alike(4, "NVIDIA A100-SXM4-40GB", 40960, 3, 0)  # 535.104.05
H100 = alike(1, "NVIDIA H100 80GB HBM3", 81559, 19818, 100).with_users((0, 11327, 2566), (0, 11345, 15690))  # 590.48.01
V100 = alike(2, "Tesla V100-SXM2-16GB", 16160, 0, 0)  # 418: without the maker in the name
GEFORCE = alike(1, "NVIDIA GeForce RTX 2080 SUPER", 8192, 819, 8).with_users(
    (0, 5268, 370), (0, 5267, 230)
)  # 595.71.05
UNSUPPORTED = alike(1, "GeForce GT 610", "[Not Supported]", "[Not Supported]", "[Not Supported]")  # old cards
GB10 = alike(1, "NVIDIA GB10", "[N/A]", "[N/A]", 0).with_users((0, 6330, 96073))  # 580.126.09: memory is the host's
INFOROM = replace(V100, code=14, gpus="WARNING: infoROM is corrupted at gpu 0000:00:04.0\n" + V100.gpus)
HIDDEN_USERS = replace(  # as in a container without rights
    H100, users=f"{uuid(0)}, [Insufficient Permissions], [Insufficient Permissions]\n{uuid(0)}, 21198, [N/A]\n"
)
H100_MIG = replace(
    alike(1, "NVIDIA H100 80GB HBM3", 81559, 11125, "[N/A]").with_users((0, 21180, 2296)),  # 590.48.01
    listed=(
        f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {uuid(0)})\n"
        f"  MIG 3g.40gb     Device  0: (UUID: {MIG}00)\n"
        f"  MIG 2g.20gb     Device  1: (UUID: {MIG}01)\n"
        f"  MIG 1g.10gb     Device  2: (UUID: {MIG}02)\n"
    ),
)
A100_OLD_MIG = replace(  # 450.80.02, whose instances have another form of UUID
    alike(1, "A100-SXM4-40GB", 40537, 14293, "[N/A]"),
    listed=(
        f"GPU 0: A100-SXM4-40GB (UUID: {uuid(0)})\n"
        f"  MIG 3g.20gb Device 0: (UUID: MIG-{uuid(0)}/1/0)\n"
        f"  MIG 3g.20gb Device 1: (UUID: MIG-{uuid(0)}/2/0)\n"
    ),
)


def failing(code: int, text: str) -> Smi:
    return Smi(text, text, text, code)


NO_DRIVER = failing(
    9,
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n\n",
)
MISMATCH = failing(18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n")
LOST = failing(
    15,
    "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.  Reboot the system to recover this GPU\n",
)
NONE = failing(6, "No devices were found\n")
HANGING = Smi(hangs=True)
