"""The command line. The only package that prints, knows typer and rich, or ends the process."""

import sys


def main() -> None:
    """The `clusterctl` program."""
    try:
        from clusterctl.cli.app import run

        run()
    except KeyboardInterrupt:  # while modules were being imported
        sys.exit(130)
