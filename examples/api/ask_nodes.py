"""Run a command on every node and compare what they print."""

from __future__ import annotations

from collections import defaultdict

import clusterctl


def main() -> None:
    labels: defaultdict[str, list[str]] = defaultdict(list)
    with clusterctl.Cluster.from_conf() as cluster:
        for result in cluster.exec(["python3", "--version"]):
            answer = result.stdout.strip() if result.ok else str(result.error or result.stderr.strip())
            labels[answer].append(result.node.label)
    for answer, nodes in labels.items():
        print(f"{', '.join(nodes)}: {answer}")


if __name__ == "__main__":
    main()
