"""The command line. Only this package prints, uses rich and typer, or ends the process.

May import every part that runs on the control machine, but not `agent` or `runtime`. What chains stages is in
`api`. Start reading at `app.py`.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import NoReturn

from clusterctl.errors import InterruptedRun

#: Before a collection. Imports make many objects, none of which is garbage: Python's 700 cost 20 ms of 230.
YOUNG_OBJECTS = 100_000
AGAIN_S = 0.01  # after an interrupt that Python has ignored


def main() -> None:
    """Entry point of the `clusterctl` program."""
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
    repeat_ignored_interrupts()
    try:
        if len(sys.argv) == 1 and os.environ.get("_CLUSTERCTL_COMPLETE"):
            code = answer_shell()
        else:
            from clusterctl.cli.app import run

            code = run()
    except KeyboardInterrupt:  # while modules were being imported
        code = InterruptedRun.exit_code
    _leave(code)


def answer_shell() -> int:
    """Print completions for a shell that asks for them. No error is shown, since it asks at every press of Tab."""
    try:
        from clusterctl.cli import declarations, typer_adapter

        return typer_adapter.complete(declarations.app, declarations.NAME)
    except Exception:  # noqa: BLE001 - such as a damaged installation
        return 1


def repeat_ignored_interrupts() -> None:
    """Raise KeyboardInterrupt again if Ctrl-C hits code whose exceptions Python ignores.

    Such code is a callback of weakref, which every import calls, or a `__del__`. Without this, Ctrl-C would seldom, but
    then completely, be lost.
    """
    report = sys.unraisablehook

    def on_ignored(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)  # raised at once, it would hit this function
        else:
            report(unraisable)

    signal.signal(signal.SIGALRM, signal.default_int_handler)  # not the handler of SIGINT, which has had its interrupt
    sys.unraisablehook = on_ignored


def _leave(code: int) -> NoReturn:
    """Exit without Python's shutdown; every `finally` has run by now.

    Tearing down all modules takes 30 ms. Python also kills itself with SIGINT at exit if an interrupt ever hit an
    exec(), such as the one that dataclasses call during import, even if the interrupt was handled.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None if the caller closed it
                stream.flush()
    except OSError:
        sys.exit(code)  # Python reports the problem with the stream
    os._exit(code)
