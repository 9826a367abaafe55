"""`python -m clusterctl.runtime.pserver`."""

from __future__ import annotations

import gc
import signal
import sys
from typing import Any

from clusterctl.runtime.environment import read_environment
from clusterctl.runtime.errors import ProcessError, RuntimeFailure
from clusterctl.runtime.pserver.process import serve


def main() -> int:
    """Run a pserver until it ends; return the exit status."""
    signal.signal(signal.SIGTERM, _terminate)
    gc.freeze()  # modules are no garbage, and searching them for any would take 10 ms
    try:
        env = read_environment()
        if env.role != "pserver":
            raise ProcessError("CLUSTERCTL_ROLE is not pserver", remedy="let clusterctl start pservers")
        serve(env)
    except RuntimeFailure as failure:
        sys.stderr.write(f"pserver: {failure}\n")
        return 1
    except OSError as failure:
        sys.stderr.write(f"pserver: a save failed: {failure}; free space or check the output directory\n")
        return 1
    return 0


def _terminate(signum: int, frame: Any) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
