"""Compare `clusterctl exec -- true` and `status` with pdsh, using the cheapest key exchange and cipher.

Both also run over kept connections (KEEP_CONNECTIONS_S), which pdsh does not have.
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


def contest(nodes: Farm, rounds: int, *, kept: bool) -> None:
    """Compare with pdsh, if it is installed."""
    contenders: dict[str, Callable[[int], Cost]] = {
        "exec -- true": lambda _: nodes.measured(lambda: nodes.clusterctl("exec", "--", "true", kept=kept), kept=kept),
        "status": lambda _: nodes.measured(lambda: nodes.clusterctl("status", kept=kept), kept=kept),
    }
    if shutil.which("pdsh"):
        contenders["pdsh true"] = lambda _: nodes.measured(lambda: pdsh(nodes), kept=kept)
    played = Contest(contenders).play(rounds)
    show(HEADINGS, played.rows(f"{nodes.count} nodes{', kept' if kept else ''}", ours="exec -- true"))
    for ours in [name for name in contenders if name != "pdsh true"] if "pdsh true" in contenders else ():
        print(f"pdsh true / {ours}: {played.ratio(ours, 'pdsh true'):.2f}")


def main() -> None:
    parser = options(__doc__.splitlines()[0], nodes=32, rounds=7)
    add_bytecode(parser)
    given = parser.parse_args()
    with scratch(given.dir) as top, farm(given.nodes, top, bytecode=given.bytecode) as nodes:
        (top / "workspace").mkdir()
        (top / "workspace" / "train.py").write_text("")
        nodes.clusterctl("dispatch", str(top / "workspace"))
        contest(nodes, given.rounds, kept=False)
        nodes.clusterctl("status", kept=True)
        contest(nodes, given.rounds, kept=True)
        nodes.disconnect()


if __name__ == "__main__":
    main()
