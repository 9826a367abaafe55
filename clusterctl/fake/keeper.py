"""The keeper process: it ends a cluster of daemons or containers when the process that made the cluster is gone."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from clusterctl.fake import cluster


def main() -> None:
    """Run the keeper. The request is the first line of standard input, which stays open as long as `up`'s caller."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = json.loads(sys.stdin.readline())
    print(json.dumps({"ready": True}), flush=True)  # the answer that `up` waits for
    sys.stdin.read()
    cluster.end(Path(request["directory"]), remove=request["remove"])
