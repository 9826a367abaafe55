"""Compare `clusterctl exec -- true` and `status` with pdsh, using the cheapest key exchange and cipher."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from farm import HEADINGS, Contest, Cost, Farm, add_bytecode, farm, options, run, scratch, show


def pdsh(nodes: Farm) -> Cost:
    """Run `true` on all nodes at once."""
    env = {**os.environ, "PDSH_SSH_ARGS_APPEND": nodes.ssh().removeprefix("ssh ")}
    return run(["pdsh", "-R", "ssh", "-S", "-f", str(nodes.count), "-w", f"node[0-{nodes.count - 1}]", "true"], env)


def main() -> None:
    parser = options(__doc__, nodes=32, rounds=7)
    add_bytecode(parser)
    given = parser.parse_args()
    with scratch(given.dir) as top, farm(given.nodes, top, bytecode=given.bytecode) as nodes:
        (top / "workspace").mkdir()
        (top / "workspace" / "train.py").write_text("")
        nodes.clusterctl("dispatch", str(top / "workspace"))
        contenders: dict[str, Callable[[int], Cost]] = {
            "exec -- true": lambda _: nodes.measured(lambda: nodes.clusterctl("exec", "--", "true")),
            "status": lambda _: nodes.measured(lambda: nodes.clusterctl("status")),
        }
        if shutil.which("pdsh"):
            contenders["pdsh true"] = lambda _: nodes.measured(lambda: pdsh(nodes))
        contest = Contest(contenders).play(given.rounds)
        show(HEADINGS, contest.rows(f"{nodes.count} nodes", ours="exec -- true"))
        if "pdsh true" in contenders:
            print(f"pdsh / exec {contest.ratio('exec -- true', 'pdsh true'):.2f}")
            print(f"pdsh / status {contest.ratio('status', 'pdsh true'):.2f}")


if __name__ == "__main__":
    main()
