"""How a process ended, in words: by its signal or exit code, the exception that it raised, and the system's errors.

What is looked at is structure: the last traceback and its class, `errno` by number, name or the system's own text, the
signal. So that a program that nobody here knows is understood as far as it speaks as the system does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from clusterctl.observe.why.errno_and_signals import (
    MEMORY,
    OUTSIDE,
    SHELL_CODES,
    SIGNALS,
    Diagnosis,
    of_errno,
    signal_of,
    told_end,
)
from clusterctl.observe.why.exceptions import LIBRARY, LOADER, NO_MEMORY, of_chain, of_exception, of_import
from clusterctl.observe.why.tracebacks import Raised, raised

LOOKED_AT = 12  # last lines, where there is no traceback
QUOTED_CHARS = 160
CALL = re.compile(r"\s+at |\s+\.\.\. \d+ more")  # in the stacks of Java, JavaScript and others
NAMED = re.compile(
    r'(?:Exception in thread "[^"]*" |Caused by: |Uncaught )?([A-Za-z_][\w.$]*(?:Error|Exception))(?:: +(.*))?$'
)
NO_MODULE = re.compile(r"[^ ]*python[\d.]*: .*\bNo module named '?([\w.]+)")  # -m of a module that is not there
TROUBLE = re.compile(r"\b(?:error|fatal|panic\w*|fail\w*|cannot|assert\w*)\b", re.IGNORECASE)
USAGE = 2
PROGRAM_ERROR = re.compile(r"\S+: error: ")  # as argparse and others put it
WAIT_FOR_EACH_OTHER = (
    "the stacks in the logs show for what; all trainers have to make the same tables, a save no longer than "
    "STALL_S; else it is a fault of the pserver. start --resume goes on from the last checkpoint"
)
STALLED = "the stacks of its threads are in its log: they show where it stands; ON_STALL says what is done"
MEMORY_LIMIT = "it met MEMORY_LIMIT_MB of conf.py: a larger one, or use less (smaller batches)"
LEFT = "let it leave its `with connect()` (os._exit does not), or end with another code, so that it is started again"
HALTED = "kill -CONT lets it go on, on {node}; clusterctl stop ends it"


def diagnose(exit_code: int | None, lines: Sequence[str], *, oom: bool = False, stalled: bool = False) -> Diagnosis:
    """What the end of a process means. `exit_code` is -n for signal n; None for something that did not end. `lines` are
    the last ones of the program itself.
    """
    if oom:
        return Diagnosis("out_of_memory", "out of memory", MEMORY, signal="SIGKILL")
    if stalled:
        return Diagnosis("stalled", "it stood still", STALLED, signal="SIGKILL")
    number = signal_of(exit_code)
    if number:
        return _of_signal(number, lines)
    chain = raised(lines)
    if chain:
        return _of_started(of_chain(chain), lines[: chain[0].begin])
    return _of_words(exit_code, lines)


def _of_signal(number: int, lines: Sequence[str]) -> Diagnosis:
    name, kind, words, advice = SIGNALS.get(number, (f"signal {number}", "signal", "from outside", OUTSIDE))
    if kind == "aborted":
        said = _of_words(None, lines)
        if said.kind != "exit":
            return replace(said, signal=name)
        words = said.words or words
    place = next((line.strip() for line in lines if line.lstrip().startswith("File ")), None)
    fatal = any(line.startswith("Fatal Python error:") for line in lines)
    return Diagnosis(kind, words, advice, signal=name, where=place if fatal else None, about_peer=kind == "peer_gone")


def _of_started(said: Diagnosis, before: Sequence[str]) -> Diagnosis:
    """An exception that tells of the end of another process is about that one, and what that one wrote before."""
    code = told_end(said.error or "") if said.kind == "exception" else None
    if not code:
        return said
    inner = diagnose(code, before)
    ended = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
    words = f"a process that it had started {ended}" + (f" ({inner.words})" if inner.words else "")
    if inner.kind == "exit":
        return replace(said, words=words)
    return replace(inner, words=words, error=said.error, where=said.where, signal=None)


def _of_words(exit_code: int | None, lines: Sequence[str]) -> Diagnosis:
    """Without a traceback: what the last lines say, else the exit code."""
    last = [line for line in lines if line.strip() and not CALL.match(line)][-LOOKED_AT:]
    said = _of_lines(last)
    if said is not None:
        return said
    if exit_code == USAGE and any(PROGRAM_ERROR.match(line) for line in last):
        return Diagnosis("usage", "the program does not take these arguments", "what it is given follows -- of start")
    if exit_code in SHELL_CODES:
        return SHELL_CODES[exit_code]
    if not last:
        return Diagnosis(
            "exit", "", f"it did not say why: look where it ends with {exit_code}, or run it alone on {{node}}"
        )
    return Diagnosis("exit", f'"{_quoted(last)}"', "it ended by itself: its last lines may say why")


def _of_lines(last: Sequence[str]) -> Diagnosis | None:
    """The last error that they tell: of one's own before those of others, of the system before those of the program."""
    loading = [line for line in last if LIBRARY.search(line) or LOADER.search(line)]
    if loading:
        return of_import(Diagnosis("import_error", error=loading[-1].strip()), loading[-1])
    told = [one for line in last if (one := _of_line(line)) is not None]
    told = [one for one in told if not one.about_peer] or told
    told = [one for one in told if one.kind != "exception"] or told
    if told:  # of several lines about the same the one that says of what
        return next((one for one in reversed(told) if one.subject and one.kind == told[-1].kind), told[-1])
    if any(NO_MEMORY.search(line) for line in last):
        return Diagnosis("out_of_memory", "out of memory", MEMORY)
    return None


def _of_line(line: str) -> Diagnosis | None:
    """The system's error, or the exception, that a line tells."""
    named, module = NAMED.match(line), NO_MODULE.match(line)
    if named:
        return of_exception(Raised(named[1], (named[2] or "").strip()))
    if module:
        return of_exception(Raised("ModuleNotFoundError", f"No module named '{module[1]}'"))
    said = of_errno(line)
    return replace(said, error=line.strip()) if said else None


def _quoted(last: Sequence[str]) -> str:
    """The last line that sounds of trouble, else the last: only to be shown."""
    line = next((line for line in reversed(last) if TROUBLE.search(line)), last[-1]).strip()
    return line if len(line) <= QUOTED_CHARS else line[:QUOTED_CHARS] + "..."
