"""Count the bytes that each node receives over its link: shards and common files of `dispatch`, wheels of `setup`.

The nodes are machines made of network namespaces with an OpenSSH daemon each; this machine is on their switch. Files of
`--mb` megabytes hold random bytes, which do not compress. Of shards and wheels, one is a node's own, which only this
node lacks. "needs" is what a node lacks, so that more than that is waste. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from clusterctl.fake.sshd import config_text, find_sshd
from farm import program, show
from networks import NETWORK, Network, network
from support.openssh import make_key
from support.wheels import make_wheel

PORT = 2222
CONTROL = f"{NETWORK}.1"
SSHD_S = 20.0


class Machines:
    """The nodes of a network with their daemons, and the program on the machine of the switch."""

    def __init__(self, net: Network, directory: Path) -> None:
        self.net = net
        self.directory = directory
        self.identity = make_key(directory / "client")
        net.switch.run(f"ip addr add {CONTROL}/24 dev bridge0")
        known = []
        for number, node in enumerate(net.nodes):
            home = directory / f"node{number}"
            home.mkdir()
            host_key = make_key(directory / f"host{number}")
            config = directory / f"sshd{number}"
            first = [f"ListenAddress {net.address(number)}"]
            keys = self.identity.with_suffix(".pub")
            config.write_text(config_text(PORT, host_key, keys, {"HOME": str(home)}, first=first))
            argv = ["setpriv", "--pdeathsig", "KILL", "--", *node.inside(), find_sshd(), "-D", "-f", str(config)]
            subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            kind, key = host_key.with_suffix(".pub").read_text().split()[:2]
            known.append(f"[{net.address(number)}]:{PORT} {kind} {key}\n")
        (directory / "known_hosts").write_text("".join(known))
        (directory / "ssh_config").write_text("")

    def clusterctl(self, relay: str, *args: str, **settings: Any) -> Any:
        """Run the program; return its JSON document. Each RELAY has places of its own on the nodes."""
        values = {
            "HOSTS": [f"root@{self.net.address(number)}:{PORT}" for number in range(len(self.net.nodes))],
            "ROOT_DIR": f"~/{relay}",
            "RELAY": relay,
            "PYTHON": sys.executable,
            "IDENTITY_FILE": str(self.identity),
            "KNOWN_HOSTS": str(self.directory / "known_hosts"),
            "SSH_CONFIG": str(self.directory / "ssh_config"),
            **settings,
        }
        conf = self.directory / "conf.py"
        conf.write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()))
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.directory / f"cache-{relay}")}
        argv = [*self.net.switch.inside(), *program(), "--conf", str(conf), *args, "--json"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(args)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def counted(self, found: dict[int, float]) -> Iterator[None]:
        """Add to `found` the megabytes that each node receives meanwhile."""
        before = [self.net.received_bytes(node) for node in range(len(self.net.nodes))]
        yield
        for node, count in enumerate(before):
            found[node] = (self.net.received_bytes(node) - count) / 1e6

    def wait(self) -> None:
        end = time.monotonic() + SSHD_S
        for number in range(len(self.net.nodes)):
            probe = f"import socket; socket.create_connection(({self.net.address(number)!r}, {PORT}), 2)"
            command = [*self.net.switch.inside(), sys.executable, "-c", probe]
            while subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
                if time.monotonic() > end:
                    raise SystemExit("sshd does not start")
                time.sleep(0.1)


def dispatched(machines: Machines, relay: str, kind: str, size: int) -> dict[int, float]:
    """Dispatch one file that all nodes lack, or as many shards as there are nodes."""
    count = len(machines.net.nodes) if kind == "shards" else 1
    workspace = machines.directory / f"{kind}-{relay}"
    (workspace / "data").mkdir(parents=True)
    for number in range(count):
        (workspace / f"data/part-{number:05d}").write_bytes(random.Random(f"{kind} {number}").randbytes(size))
    found: dict[int, float] = {}
    shards = {"SHARDS": ["data/part-*"]} if kind == "shards" else {}
    with machines.counted(found):
        machines.clusterctl(relay, "dispatch", str(workspace), **shards)
    return found


def wheels(machines: Machines, relay: str, kind: str, size: int) -> dict[int, float]:
    """Set up one package that all nodes lack, or in addition one package for each node that only this node lacks."""
    place = (
        machines.directory / f"{kind.rsplit(maxsplit=1)[-1]}-{relay}"
    )  # pip takes a comma or a space for the end of a path
    index = place / "index"
    nodes = range(len(machines.net.nodes))

    def make(name: str) -> str:
        make_wheel(index, name, "1.0", {f"{name}.txt": random.Random(name).randbytes(size // 2).hex()})
        return name

    def setup(packages: list[str], *options: str) -> None:
        workspace = place / "workspace"
        workspace.mkdir(exist_ok=True)
        lines = ["--no-index", f"--find-links {index}", *packages]
        (workspace / "requirements.txt").write_text("\n".join(lines) + "\n")
        machines.clusterctl(relay, "setup", str(workspace), "--offline", "--no-uv", *options, ENGINE="none")

    own = [make(f"own{node}") for node in nodes] if kind == "wheels, one own" else []
    for node, package in enumerate(own):
        others = ",".join(f"node{other}" for other in nodes if other != node)
        setup([package], f"--only={others}")
    found: dict[int, float] = {}
    with machines.counted(found):
        setup([make("common"), *own])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--mb", type=int, default=60, help="of each file")
    given = parser.parse_args()
    cases = {"shards": (dispatched, 1), "a common file": (dispatched, 1), "wheels": (wheels, 1)}
    cases["wheels, one own"] = (wheels, 2)
    rows = []
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as data, network(given.nodes) as net:
        machines = Machines(net, Path(data))
        machines.wait()
        for kind, (count, files) in cases.items():
            for relay in ("always", "never"):
                found = count(machines, relay, kind, given.mb * 1_000_000)
                figures = [f"{found[node]:.0f}" for node in range(given.nodes)]
                rows.append([kind, f"RELAY={relay!r}", f"{given.mb * files}", *figures])
    show(["what", "setting", "needs MB", *(f"node{node} MB" for node in range(given.nodes))], rows)


if __name__ == "__main__":
    main()
