"""Ends the run on a node if its first rank is killed: a waiting shell, which needs less memory than Python."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from clusterctl.common.procfs import wait_until
from clusterctl.ranks.meeting import Meeting, World
from clusterctl.ranks.node_run import NodeRun

WAIT = 'read -r word || exec "$0" "$@"'
GOODBYE = b"bye\n"
PROGRAM = "clusterctl-rank"
END, REACH = "--end", "--reach"
STARTING_S = 60.0  # in which a start that has lost its first rank is undone, or shows its supervisor
ENDING_S = 600.0  # GRACE_S and the last writes


def program() -> tuple[str, ...]:
    """Return the words that run this program again."""
    if Path(sys.argv[0]).name == PROGRAM:
        return (str(Path(sys.argv[0]).absolute()),)
    return (sys.executable, "-I", "-S", str(Path(__file__).with_name("__main__.py")))


class Lifeline:
    """Ends the run of a job directory when this process dies without `let_go`. Then it removes the `meeting`, if any.

    It is in a session of its own, and has none of our output: mpirun kills our group, and waits for the output's end.
    """

    def __init__(self, job_dir: Path, meeting: Meeting | None) -> None:
        more = (str(meeting.shared),) if meeting else ()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", WAIT, *program(), END, str(job_dir), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def let_go(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), GOODBYE)
            self._process.stdin.close()
        self._process.wait()


def end(environ: Mapping[str, str], job_dir: str, shared: str = "") -> None:
    """Stop the run of a job directory, and wait for its end. A start that is under way is awaited first.

    `environ` is that of the rank, as it has the namespace, which nobody else is to read.
    """
    node = NodeRun(Path(job_dir))
    wait_until(lambda: node.supervisor() is not None or node.is_free(), STARTING_S)
    node.stop()
    wait_until(node.is_over, ENDING_S)
    if shared:
        Meeting(Path(shared), World.of(environ).namespace).remove()
