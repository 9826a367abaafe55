"""Compare `clusterctl exec -- true` and `status` with pdsh, using the cheapest key exchange and cipher.

Both also run over kept connections (KEEP_CONNECTIONS_S), which pdsh does not have.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from farm import HEADINGS, Contest, Cost, Farm, farm, options, run, scratch, show


def pdsh(nodes: Farm) -> Cost:
    """Run `true` on all nodes at once."""
    env = {**os.environ, "PDSH_SSH_ARGS_APPEND": nodes.ssh().removeprefix("ssh ")}
    return run(["pdsh", "-R", "ssh", "-S", "-f", str(nodes.count), "-w", f"node[0-{nodes.count - 1}]", "true"], env)


def main() -> None:
    given = options(__doc__.splitlines()[0], nodes=32, rounds=7).parse_args()
    with scratch(given.dir) as top, farm(given.nodes, top) as nodes:
        (top / "workspace").mkdir()
        (top / "workspace" / "train.py").write_text("")
        nodes.clusterctl("dispatch", str(top / "workspace"))
        contenders: dict[str, Callable[[int], Cost]] = {
            "exec -- true": lambda _: nodes.clusterctl("exec", "--", "true"),
            "status": lambda _: nodes.clusterctl("status"),
            "exec, kept": lambda _: nodes.clusterctl("exec", "--", "true", kept=True),
            "status, kept": lambda _: nodes.clusterctl("status", kept=True),
        }
        nodes.clusterctl("status", kept=True)
        if shutil.which("pdsh"):
            contenders["pdsh true"] = lambda _: pdsh(nodes)
        contest = Contest(contenders).play(given.rounds)
        show(HEADINGS, contest.rows(f"{nodes.count} nodes", ours="exec -- true"))
        nodes.disconnect()
        for ours in [name for name in contenders if name != "pdsh true"] if "pdsh true" in contenders else ():
            print(f"pdsh true / {ours}: {contest.ratio(ours, 'pdsh true'):.2f}")


if __name__ == "__main__":
    main()
