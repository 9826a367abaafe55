"""Measure the memory that a dispatch needs on either side: for one large file, and for very many small ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from farm import Farm, PeakOf, farm, options, scratch, show

LIMIT_MB = 200
CHUNK = os.urandom(1 << 20)


def large(directory: Path, megabytes: int) -> None:
    with (directory / "large.bin").open("wb") as f:
        for index in range(megabytes):
            f.write(index.to_bytes(8, "big") + CHUNK[8:])


def many(directory: Path, files: int) -> None:
    for index in range(files):
        path = directory / f"d{index % 100:02d}" / f"f{index:06d}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"%d" % index)


def measure(nodes: Farm, name: str, workspace: Path) -> list[str]:
    """Return a row: time, and the largest process on either side. Raises RuntimeError if a node lacks bytes."""
    marker = str(nodes.directory).encode()

    def is_client(process: Path) -> bool:
        return b"\0dispatch\0" in (process / "cmdline").read_bytes() and not is_agent(process)

    def is_agent(process: Path) -> bool:
        return b"exec(i.read(" in (process / "cmdline").read_bytes() and marker in (process / "environ").read_bytes()

    with PeakOf(is_client) as client, PeakOf(is_agent) as agents:
        cost = nodes.clusterctl("--json", "dispatch", str(workspace))
    for node in json.loads(cost.out)["nodes"]:
        check(workspace, Path(node["dir"]))
    worst = max(client.bytes, agents.bytes) / 1e6
    verdict = "ok" if worst < LIMIT_MB else f"over {LIMIT_MB} MB"
    figures = [f"{cost.seconds:.1f}", f"{cost.cpu_s:.1f}", f"{client.bytes / 1e6:.0f}", f"{agents.bytes / 1e6:.0f}"]
    return [name, verdict, *figures]


def check(workspace: Path, tree: Path) -> None:
    for path in workspace.rglob("*"):
        other = tree / path.relative_to(workspace)
        if path.is_file() and not same(path, other):
            raise RuntimeError(f"{other} differs from what was sent")


def same(one: Path, other: Path) -> bool:
    with one.open("rb") as a, other.open("rb") as b:
        while True:
            left, right = a.read(1 << 20), b.read(1 << 20)
            if left != right:
                return False
            if not left:
                return True


def main() -> None:
    given = options(__doc__, nodes=2, megabytes=3000, files=100_000).parse_args()
    rows = []
    with scratch(given.dir) as top, farm(given.nodes, top) as nodes:
        for name, make, count in (
            (f"one file of {given.megabytes} MB", large, given.megabytes),
            (f"{given.files:,} files", many, given.files),
        ):
            workspace = top / "workspace"
            workspace.mkdir()
            make(workspace, count)
            rows.append(measure(nodes, name, workspace))
            shutil.rmtree(workspace)
            nodes.remove("clusterctl")
    show([f"{given.nodes} nodes", "", "s", "client cpu s", "client MB", "agent MB"], rows)


if __name__ == "__main__":
    main()
