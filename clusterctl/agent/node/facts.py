"""The facts of a node: versions, cores, memory, disk, limits, and leftovers of dead jobs."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from clusterctl.agent.node import job_processes
from clusterctl.agent.node.jobs import is_free
from clusterctl.agent.node.locks import is_dispatching
from clusterctl.common.paths import META, JobPaths, incoming_dir
from clusterctl.common.procfs import PROC

# numpy and its BLAS choose their loops by these: machines that differ here add in another order.
SIMD = ("sse4_2", "avx", "fma", "avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve", "sve2")
MOST_NAMED = 20  # half-sent workspaces


def quick(root: Path) -> dict[str, Any]:
    """Return the facts that cost almost nothing; `start` needs them too. Sizes in bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "clock": time.time(),
        "disk": disk(root),
        "open_files": {"soft": _limit(soft), "hard": _limit(hard)},
        "system": system(),
    }


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def disk(root: Path) -> dict[str, Any]:
    """Return the facts of the file system of ROOT_DIR."""
    system = os.statvfs(root)
    return {
        "free": system.f_bavail * system.f_frsize,
        "total": system.f_blocks * system.f_frsize,
        "inodes_free": system.f_favail if system.f_files else None,
        "read_only": bool(system.f_flag & os.ST_RDONLY),
    }


def system() -> dict[str, Any]:
    """Return the facts that decide if two nodes compute the same bits."""
    words = _cpuinfo()
    flags = set((words.get("flags") or words.get("Features") or "").split())
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        libc = None
    kernel = os.uname()
    return {
        "machine": kernel.machine,
        "cpu": words.get("model name"),
        "simd": [word for word in SIMD if word in flags],
        "libc": libc,
        "kernel": kernel.release,
    }


def _cpuinfo() -> dict[str, str]:
    """Return the first processor's entries of /proc/cpuinfo."""
    entries: dict[str, str] = {}
    try:
        with (PROC / "cpuinfo").open(errors="replace") as f:
            for line in f:
                name, _, value = line.partition(":")
                if not name.strip():
                    break
                entries[name.strip()] = value.strip()
    except OSError:
        pass
    return entries


def memory() -> dict[str, int]:
    """Return the bytes of memory in total, and those available to programs."""
    words = {}
    for line in (PROC / "meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        words[name] = int(value.split()[0]) * 1024
    return {"total": words["MemTotal"], "available": words.get("MemAvailable", words["MemFree"])}


def try_to_write(root: Path) -> None:
    """Write a temporary file in ROOT_DIR. Raises OSError if that is not possible."""
    with tempfile.NamedTemporaryFile(dir=root / META) as f:
        f.write(b"x" * 4096)
        f.flush()


def leftovers(root: Path) -> list[dict[str, Any]]:
    """Return the processes of jobs that have no start, supervisor or guardian: `job`, `pids` and their `commands`.

    It includes jobs whose directories are gone.
    """
    jobs = []
    for name, living in job_processes.by_job(root).items():
        job = JobPaths(root / name)
        if (is_free(job) or not job.is_own()) and not job_processes.agents_of(job.dir, job_processes.SUPERVISOR):
            rows = job_processes.named(living)
            jobs.append(
                {"job": name, "pids": [row["pid"] for row in rows], "commands": [row["command"] for row in rows]}
            )
    return jobs


def half_dispatched(root: Path) -> list[str]:
    """Return the directories left by dispatches whose agents died; empty while a dispatch is running."""
    if is_dispatching(root):
        return []
    incoming = incoming_dir(root)
    names = sorted(path.name for path in incoming.iterdir()) if incoming.is_dir() else []
    return names[:MOST_NAMED]
