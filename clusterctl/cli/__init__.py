"""The command line. The only package that prints, knows rich, or ends the process."""

import os
import sys
from typing import NoReturn

INTERRUPTED = 130


def main() -> None:
    """The `clusterctl` program."""
    try:
        from clusterctl.cli.app import run

        code = run()
    except KeyboardInterrupt:  # while modules were being imported
        code = INTERRUPTED
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Ends the process as it is: everything is unwound by now.

    To take apart all modules costs Python 30 ms; and it kills itself by SIGINT at exit when an interrupt once hit an
    exec(), as dataclasses do while they are imported, whether it was handled or not.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # as it is for who closed it before he called us
                stream.flush()
    except OSError:
        sys.exit(code)  # Python says what is wrong with them
    os._exit(code)
