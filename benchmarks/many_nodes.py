"""Measure dispatch, exec, status and stop on 256 embedded fake nodes, with the usual limit of 1,024 open files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from farm import PeakOf, options, program, run, scratch, show

OPEN_FILES = 1024


def is_client(process: Path) -> bool:
    """Return True for a process that this benchmark started itself."""
    return _parent(process) == os.getpid() and b"fake" not in (process / "cmdline").read_bytes()


def is_server(process: Path) -> bool:
    return b"clusterctl.fake" in (process / "cmdline").read_bytes()


def _parent(process: Path) -> int:
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


def main() -> None:
    given = options(__doc__, nodes=256, rounds=2).parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
    with scratch(given.dir) as top:
        workspace = top / "workspace"
        workspace.mkdir()
        for index in range(50):
            (workspace / f"part-{index}").write_bytes(os.urandom(20_000))
        fake = ["fake", "up", "-n", str(given.nodes), "--dir", str(top / "fake")]
        env = {**os.environ, "CLUSTERCTL_CONF": str(top / "fake" / "conf.py"), "XDG_CACHE_HOME": str(top / "cache")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has cached bytecode
        rows = [["fake up", "", f"{run([*program(), *fake]).seconds:.2f}", "", "", "", ""]]
        try:
            for name, words in {
                "first dispatch": ["dispatch", str(workspace)],
                "nothing changed": ["dispatch", str(workspace)],
                "exec -- true": ["exec", "--", "true"],
                "status": ["status"],
                "stop": ["stop"],
            }.items():
                rows.append(measure(name, words, env, 1 if name == "first dispatch" else given.rounds, given.nodes))
        finally:
            run([*program(), "fake", "down", "--dir", str(top / "fake")])
        show([f"{given.nodes} nodes", "", "s", "client cpu s", "ms per node", "client MB", "server MB"], rows)


def measure(name: str, words: list[str], env: dict[str, str], rounds: int, nodes: int) -> list[str]:
    """Return a row: the best time of some rounds, and the largest memory in any of them."""
    with PeakOf(is_client) as client, PeakOf(is_server) as server:
        cost = min((run([*program(), *words], env) for _ in range(rounds)), key=lambda one: one.seconds)
    memory = [f"{peak.bytes / 1e6:.0f}" for peak in (client, server)]
    return [name, "", f"{cost.seconds:.2f}", f"{cost.cpu_s:.2f}", f"{1000 * cost.cpu_s / nodes:.1f}", *memory]


if __name__ == "__main__":
    main()
