"""The command line. The only package that prints, knows rich, or ends the process."""

import os
import sys

INTERRUPTED = 130


def main() -> None:
    """The `clusterctl` program."""
    try:
        from clusterctl.cli.app import run

        code = run()
    except KeyboardInterrupt:  # while modules were being imported
        code = INTERRUPTED
    if code == INTERRUPTED:
        # Python kills itself by SIGINT at exit when an interrupt once hit an exec(), as dataclasses do while they are
        # imported, whether it was handled or not. Everything is unwound by now, so leave without asking it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
