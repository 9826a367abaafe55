"""Seconds of `clusterctl exec -- true` and `status` on nodes that have a core of their own, beside pdsh.

The daemons share the last core of this machine, and the client has the others: with one node, the seconds are those of
a node that is another machine. pdsh uses the cheapest key exchange and cipher.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from farm import HEADINGS, Contest, Cost, Farm, add_bytecode, farm, options, run, scratch, show


def pdsh(nodes: Farm) -> Cost:
    """Run `true` on all nodes at once."""
    env = {**os.environ, "PDSH_SSH_ARGS_APPEND": nodes.ssh().removeprefix("ssh ")}
    return run(["pdsh", "-R", "ssh", "-S", "-f", str(nodes.count), "-w", f"node[0-{nodes.count - 1}]", "true"], env)


def contest(nodes: Farm, rounds: int) -> None:
    """Compare with pdsh, if it is installed."""
    contenders: dict[str, Callable[[int], Cost]] = {
        "exec -- true": lambda _: nodes.measured(lambda: nodes.clusterctl("exec", "--", "true")),
        "status": lambda _: nodes.measured(lambda: nodes.clusterctl("status")),
    }
    if shutil.which("pdsh"):
        contenders["pdsh true"] = lambda _: nodes.measured(lambda: pdsh(nodes))
    played = Contest(contenders).play(rounds)
    show(HEADINGS, played.rows(f"nodes: {nodes.count}", ours="exec -- true"))
    for ours in [name for name in contenders if name != "pdsh true"] if "pdsh true" in contenders else ():
        print(f"pdsh true / {ours}: {played.ratio(ours, 'pdsh true'):.2f}")


def main() -> None:
    parser = options(__doc__.splitlines()[0], nodes=1, rounds=7)
    add_bytecode(parser)
    given = parser.parse_args()
    with scratch(given.dir) as top, farm(given.nodes, top, bytecode=given.bytecode, apart=True) as nodes:
        (top / "workspace").mkdir()
        (top / "workspace" / "train.py").write_text("")
        nodes.clusterctl("dispatch", str(top / "workspace"))
        contest(nodes, given.rounds)


if __name__ == "__main__":
    main()
