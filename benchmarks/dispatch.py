"""Compare `clusterctl dispatch` with rsync: first dispatch, nothing changed, one file edited.

Every run is verified: all nodes have the workspace, byte for byte. rsync runs at its best: started by xargs for many
nodes at once, over ssh with the cheapest key exchange and cipher. `--tune` looks for the best parallelism.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from farm import HEADINGS, Contest, Cost, Farm, add_bytecode, farm, file_system, options, run, scratch, show

OURS = "clusterctl"
OWN = {"nodefile", "log", "output", ".clusterctl"}  # added by clusterctl at the top of a job directory
WORDS = b"weight gradient step loss pass trainer server 0.125 -3.5e-04 import def return None\n".split(b" ")


@dataclass(frozen=True)
class Case:
    name: str
    files: int
    bytes: int


CASES = {"big": Case("100 MB in 200 files", 200, 100_000_000), "small": Case("20 MB in 2,000 files", 2000, 20_000_000)}


class Workspace:
    """A source directory, and a check that a tree is a copy of it."""

    def __init__(self, directory: Path, case: Case, text: bool) -> None:
        self.directory = directory
        self._random = random.Random(case.name)
        self._text = text
        self._size = case.bytes // case.files
        self._contents: dict[str, bytes] = {}
        for index in range(case.files):
            self._write(f"part{index % 20:02d}/data-{index:04d}.bin")

    def edit(self) -> None:
        """Replace a file with different data of the same size."""
        self._write(self._random.choice(list(self._contents)))

    def _write(self, name: str) -> None:
        data = self._make()
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._contents[name] = data

    def _make(self) -> bytes:
        if not self._text:
            return self._random.randbytes(self._size)
        words = self._random.choices(WORDS, k=self._size // 4)
        return b" ".join(words)[: self._size].ljust(self._size)

    def check(self, tree: Path) -> None:
        files = {
            str(path.relative_to(tree)): path
            for path in tree.rglob("*")
            if path.is_file() and path.relative_to(tree).parts[0] not in OWN
        }
        if set(files) != set(self._contents):
            raise RuntimeError(f"{tree}: {len(files)} files, not the {len(self._contents)} of the workspace")
        for name, path in files.items():
            if path.read_bytes() != self._contents[name]:
                raise RuntimeError(f"{path} differs from what was sent")


class Contenders:
    """One dispatch of a workspace to the first nodes of a farm, by clusterctl or rsync, verified afterwards."""

    def __init__(self, nodes: Farm, workspace: Workspace, count: int) -> None:
        self.nodes = nodes
        self.workspace = workspace
        self.count = count

    def clusterctl(self, root: str) -> Cost:
        words = ("--json", "dispatch", str(self.workspace.directory))
        cost = self.nodes.measured(lambda: self.nodes.clusterctl(*words, nodes=self.count, root=root))
        for node in json.loads(cost.out)["nodes"]:
            self.workspace.check(Path(node["dir"]))
        return cost

    def rsync(self, root: str, width: int, *, tuned: bool = True) -> Cost:
        # The full path: each node has its own home, but a command over ssh starts in the account's home.
        target = f"node{{}}:{self.nodes.sshd.directory}/node{{}}/home/{root}/"
        ssh = self.nodes.ssh(tuned=tuned)
        each = ["rsync", "-a", "--delete", "-e", ssh, f"{self.workspace.directory}/", target]
        words = shlex.join(["xargs", "-P", str(width), "-I{}", *each])
        cost = self.nodes.measured(lambda: run(["sh", "-c", f"seq 0 {self.count - 1} | {words}"]))
        for node in range(self.count):
            self.workspace.check(self.nodes.home(node) / root)
        return cost


def first(contenders: Contenders, peers: dict[str, Callable[[str], Cost]], rounds: int) -> Contest:
    """Every round sends to nodes that have nothing."""
    contest = Contest({name: lambda turn, do=do, name=name: do(f"{name}-{turn}") for name, do in peers.items()})
    contest.after = lambda name, turn: contenders.nodes.remove(f"{name}-{turn}")
    return contest.play(rounds)


def again(peers: dict[str, Callable[[str], Cost]], rounds: int, before: Callable[[], None]) -> Contest:
    """Every round sends to nodes that have the workspace from before `before`. All contenders get the same change."""

    def turn(do: Callable[[str], Cost], name: str) -> Cost:
        before()
        os.sync()
        return do(name)

    return Contest({name: lambda _, do=do, name=name: turn(do, name) for name, do in peers.items()}).play(rounds)


def compare(nodes: Farm, workspace: Workspace, arguments: object, width: dict[str, int]) -> list[list[str]]:
    """Return the rows of one case."""
    given = vars(arguments)
    contenders = Contenders(nodes, workspace, nodes.count)

    def peers(kind: str) -> dict[str, Callable[[str], Cost]]:
        programs: dict[str, Callable[[str], Cost]] = {OURS: contenders.clusterctl}
        if shutil.which("rsync"):
            programs["rsync"] = lambda root: contenders.rsync(root, width[kind])
            if given["default_rsync"]:
                programs["rsync-1"] = lambda root: contenders.rsync(root, 1, tuned=False)
        return programs

    rows = []
    if given["first"]:
        rows += first(contenders, peers("first"), given["first"]).rows("first")
    for name, do in peers("again").items():
        do(name)
    if given["rounds"]:
        rows += again(peers("again"), given["rounds"], lambda: None).rows("nothing changed")
        rows += again(peers("again"), given["rounds"], workspace.edit).rows("one file edited")
    for name in peers("again"):
        nodes.remove(name)
    return rows


def tune(nodes: Farm, workspace: Workspace) -> dict[str, int]:
    """Return the parallelism at which rsync is fastest here, for a first dispatch and for later ones."""
    contenders = Contenders(nodes, workspace, nodes.count)
    cold: dict[int, float] = {}
    warm: dict[int, float] = {}
    for width in (2, 4, 8, 16):
        cold[width] = contenders.rsync("tune", width).seconds
        warm[width] = min(contenders.rsync("tune", width).seconds for _ in range(4))
        nodes.remove("tune")
    seen = ", ".join(f"-P {width}: {cold[width]:.2f} / {warm[width]:.2f} s" for width in cold)
    print(f"rsync first / again  {seen}")
    return {"first": min(cold, key=cold.__getitem__), "again": min(warm, key=warm.__getitem__)}


def growth(nodes: Farm, workspace: Workspace, counts: list[int], rounds: int) -> list[list[str]]:
    """Return the client's cost of a first dispatch for each number of nodes."""
    rows = []
    for count in counts:
        contenders = Contenders(nodes, workspace, count)
        contest = first(contenders, {OURS: contenders.clusterctl}, rounds)
        rows.append([str(count), "", f"{contest.seconds(OURS):.2f}", f"{contest.cpu_s(OURS):.2f}"])
    return rows


def main() -> None:
    parser = options(__doc__.splitlines()[0], nodes=16, rounds=5, first=3, width_first=8, width_again=16)
    parser.add_argument("--case", choices=[*CASES, "both"], default="both")
    parser.add_argument("--text", action="store_true", help="text that compresses, instead of random bytes")
    parser.add_argument("--tune", action="store_true", help="first look for the best parallelism of rsync")
    parser.add_argument("--default-rsync", action="store_true", help="also run rsync untuned, one node after another")
    parser.add_argument("--growth", metavar="N,N", help="only measure a first dispatch to 1,2,4,... nodes")
    add_bytecode(parser)
    given = parser.parse_args()
    counts = [int(count) for count in given.growth.split(",")] if given.growth else []
    with scratch(given.dir) as top, farm(max(counts, default=given.nodes), top, bytecode=given.bytecode) as nodes:
        for key in CASES if given.case == "both" else [given.case]:
            case = CASES[key]
            workspace = Workspace(top / key, case, given.text)
            about = f"{file_system(top)}, {'with' if given.bytecode else 'without'} bytecode"
            print(f"{case.name}, {'text' if given.text else 'random bytes'}, {nodes.count} nodes, {about}")
            if counts:
                show(["nodes", "", "s", "client cpu s"], growth(nodes, workspace, counts, given.first))
                continue
            width = {"first": given.width_first, "again": given.width_again}
            show(HEADINGS, compare(nodes, workspace, given, tune(nodes, workspace) if given.tune else width))


if __name__ == "__main__":
    main()
