"""The program `clusterctl-rank`, which mpirun starts once for each rank."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from clusterctl.ranks.calls import reach
from clusterctl.ranks.errors import LINGER_S, USAGE_CODE, RankError, of_the_system, say
from clusterctl.ranks.lifeline import END, REACH, end
from clusterctl.ranks.meeting import LOCAL_RANK, RANK, RUN_IT, Meeting, World
from clusterctl.ranks.rank import Rank

USAGE = """\
Usage: mpirun -np RANKS clusterctl-rank [OPTIONS] COMMAND [ARGS]...

Run COMMAND as the trainers of a clusterctl run: one for each rank, with a pserver on each node.

Options:
  --shared DIR  A directory that all nodes share, where the job is made (default: the working directory).
  --conf FILE   The conf.py with the settings; its HOSTS are not used (default: DIR/conf.py, if there is one).
  --help        Print this text.

Programs that call MPI_Init are not served: each would be alone in its MPI_COMM_WORLD. They need mpirun alone.

Example: mpirun -np 8 --hostfile hosts clusterctl-rank python train.py
"""


class Options(NamedTuple):
    command: Sequence[str]
    shared: Path
    conf: Path | None


def parse(argv: Sequence[str]) -> Options:
    """Return what the words ask for. Everything from the first word without a dash on is the command.

    Raises RankError.
    """
    values: dict[str, str] = {}
    words = list(argv)
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if name == "--" and not equals:
            break
        if name not in ("--shared", "--conf"):
            raise RankError(f"there is no option {name}", "clusterctl-rank --help", USAGE_CODE)
        if not equals and words:
            value = words.pop(0)
        if not value:
            raise RankError(f"{name} needs a value", "clusterctl-rank --help", USAGE_CODE)
        values[name] = value
    if not words:
        raise RankError("there is no command for the trainers", RUN_IT, USAGE_CODE)
    conf = Path(values["--conf"]).absolute() if "--conf" in values else None
    return Options(words, Path(values.get("--shared", ".")).absolute(), conf)


def main() -> None:
    """Entry point of the `clusterctl-rank` program."""
    os.umask(0o077)  # keys are among the files that it writes
    try:
        code = _run(sys.argv[1:], os.environ)
    except RankError as exc:
        _give_way(os.environ, RANK if exc.code == USAGE_CODE else LOCAL_RANK)
        say(str(exc), exc.hint)
        code = exc.code
    except KeyboardInterrupt:
        code = 130
    os._exit(code)  # nothing is buffered


def _give_way(environ: Mapping[str, str], name: str) -> None:
    """Wait, unless this is the first rank: it prints the same, and when it has ended, mpirun ends the others."""
    if environ.get(name, "0") != "0":
        time.sleep(LINGER_S)


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    if argv and argv[0] in ("--help", "-h"):
        os.write(1, USAGE.encode())
        return 0
    if argv and argv[0] == REACH:
        return reach(Path(argv[1]), argv[-1])
    if argv and argv[0] == END:
        end(environ, *argv[1:])
        return 0
    options, world = parse(argv), World.of(environ)

    rank = Rank(world, Meeting(options.shared, world.namespace), environ)
    try:
        return rank.run(options.command, options.conf)
    except OSError as exc:
        raise of_the_system(exc, options.shared) from exc
