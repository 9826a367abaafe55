"""Diagnoses of how processes ended: from the signal or exit code, the exception raised, and system errors.

They go by structure: the last traceback and its class, `errno` by number, name or the system's message, the signal. So
an unknown program, in any language, is understood as far as it reports errors the way the system does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterctl.observe.why.errno_and_signals import (
    MEMORY,
    OUTSIDE,
    REAL_TIME,
    SHELL_CODES,
    SIGNAL_TEXTS,
    SIGNALS,
    Diagnosis,
    of_errno,
    reported_exit,
    signal_of,
    unquoted,
)
from clusterctl.observe.why.exceptions import LIBRARY, LOADER, NO_MEMORY, of_chain, of_exception, of_import
from clusterctl.observe.why.known_messages import of_format, of_known, of_status
from clusterctl.observe.why.tracebacks import (
    COLOUR,
    RaisedException,
    crashed_at,
    raised,
    without_ignored,
    without_stacks,
)

LOOKED_AT = 12  # last lines, if there is no traceback
QUOTED_CHARS = 160
#: A call in stack traces of Java, JavaScript, C++ and others, or a line of a memory dump.
CALL = re.compile(
    r"\s+at |\s+\.\.\. \d+ more|\s*\d+: 0x[0-9a-f]+ |frame #\d+: |\s+#\d+ 0x|(?:=>|  )0x[0-9a-f]+: |"
    r"  [A-Z][^:]*: +[0-9a-f]{2}\b"
)
GO_STACKS = re.compile(r"goroutine \d+ |runtime stack:")
OF_SHELL = re.compile(rf"\S+: line \d+: +\d+ (?:{'|'.join(map(re.escape, SIGNAL_TEXTS))})\b")
#: The line in which a shell in any language says that it cannot run a command, which the exit code says, too.
CANNOT_RUN = re.compile(r"[^\s:\uff1a]+[:\uff1a] ?\D{0,10}\d+\D{0,3}[:\uff1a] ?([^\s:\uff1a]+) ?[:\uff1a]")
OF_FAULTHANDLER = re.compile(r"Fatal Python error: Aborted$|Extension modules: ")  # which say nothing more
OF_PYTEST = re.compile(r"E {3,}")  # a comparison that failed
OF_CHILDREN = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException")  # as torch reports its processes
CAUSE_IN_JS = re.compile(r"\s*\[cause\]: ")
OOM_KILLED = re.compile(r"\boom_kill event\b|\bOOM Killed\b|\boom-kill\b|Out of memory: Killed process")
CAUSED_BY = "Caused by:"  # in Rust, with the causes below it
CAUSE = re.compile(r"\s+(?:\d+: )?(.*)")
PANIC = re.compile(r"panic: (.+)")  # of Go
NAMED = re.compile(
    r'(?:Exception in thread "[^"]*" |Caused by: |Uncaught |E {3,})?'
    r"([A-Za-z_][\w.$]*(?:Error|Exception|Rejection))(?:: +(.*))?$"
)
BAD_ALLOC = "instance of 'std::bad_alloc'"  # thrown by C++
NO_MODULE = re.compile(r"[^ ]*python[\d.]*: .*\bNo module named '?([\w.]+)")  # python -m with a missing module
TROUBLE = re.compile(r"\b(?:error|fatal|panic\w*|fail\w*|cannot|assert\w*)\b", re.IGNORECASE)
USAGE = 2
OF_CHILD = "the process itself, another one of the program, a person on {node} or the kernel sent it (see dmesg there)"
UNCAUGHT = 1  # the exit code of Python after an exception that nobody handled
OUTERMOST = ("", "<module>")  # functions
#: Lines that PyTorch and CUDA add to the messages of exceptions, and those of a comparison.
FURTHER = re.compile(
    r"[-+?] |CUDA kernel errors might|For debugging consider|Compile with `TORCH_USE|Device-side assert|Hint: "
)
WORD = re.compile(r"\w+")
#: Words that say no more than that a program ends.
ENDING = frozenset(
    WORD.findall(
        "a abort aborted aborting above after an and at attempts because below bye cleaning closing code command "
        "critical debug details died down due dying end ended ending error errors exception exit exited exiting failed "
        "failure fatal for giving had has in info is it job leaving log logs main more now of on program quitting "
        "reason root run script see shutting stage status step stopped stopping task terminated terminating the this "
        "to traceback trainer training tries unrecoverable up warn warning will with worker"
    )
)
#: Lines that launchers and tools add when a program that they ran has failed.
WRAPPER = re.compile(
    r"make(?:\[\d+\])?: \*\*\* |srun: |slurmstepd: |mpi(?:run|exec)\b|prterun\b|-{20,}$|wandb: |"
    r"MPI_ABORT was invoked |with errorcode \d|NOTE: invoking MPI_ABORT |You may or may not see output from other |"
    r"exactly when Open MPI |Primary job +terminated |a non-zero exit code\. |Set the environment variable HYDRA_"
)
#: Lines of logs about what the program went on after.
MILD = re.compile(
    r"[^A-SU-Za-z@]{0,60}(?:(?i:info|debug|warn(?:ing)?)\b|"
    r"[A-Za-z][\w.]{0,40}[^A-SU-Za-z@]{1,60}(?:INFO|DEBUG|WARN(?:ING)?)\b)|"
    r"\[?[DIW]\d{3,4} \d\d:|\[[DIW]\] |.*\b(?i:retrying|reconnecting)\b"
)
PROGRAM_ERROR = re.compile(r"\S+: error: ")  # as argparse and others print it
WAIT_FOR_EACH_OTHER = (
    "see the stacks in the logs for what they wait for: all trainers must create the same tables, and a save must take "
    "less than STALL_S; otherwise it is a bug in the pserver. start --resume continues from the last checkpoint"
)
STALLED = "see the stacks of its threads in its log; ON_STALL sets what happens to a stalled process"
MEMORY_LIMIT = "raise MEMORY_LIMIT_MB in conf.py, or use less memory (smaller batches)"
SEE_BOTH = "it exited on its own; see its last lines, and the exception before them"
LEFT = "let it leave `with connect()` (os._exit skips that), or exit with another code so that it is restarted"
NOT_CONNECTED = "call `connect()` in the program, and wait for processes that it starts; or set PSERVERS = 0 in conf.py"
UNFINISHED: Mapping[str, Diagnosis] = {
    "not_connected": Diagnosis("not_connected", "", NOT_CONNECTED),
    "not_left": Diagnosis("left_early", "", LEFT),
}
FENCED = Diagnosis(
    "fenced", "", "find out why {node} did not reach the first node; see NODE_GRACE_S in conf.py", signal="SIGKILL"
)
UNCONNECTED = (
    "find out what it does before connect(): a download, a lock or a file system that does not answer (py-spy dump "
    "shows its stack on {node}); if it needs that time, raise STALL_S"
)
HALTED = "resume it with kill -CONT on {node}, or end the run with clusterctl stop"


def diagnose(
    exit_code: int | None,
    lines: Sequence[str],
    *,
    oom: bool = False,
    stalled: bool = False,
    uncaught: str | None = None,
) -> Diagnosis:
    """Return the reason for the end of a process.

    `exit_code` is -n for signal n, and None for something other than an exit. `lines` are the last ones that the
    program itself printed. `uncaught` is the class of the exception that ended it, "" if none did, None if unknown.
    """
    if oom:
        return Diagnosis("out_of_memory", "out of memory", MEMORY, signal="SIGKILL")
    if stalled:
        return Diagnosis("stalled", "it made no progress", STALLED, signal="SIGKILL")
    lines = without_ignored([COLOUR.sub("", line) for line in lines])
    number = signal_of(exit_code)
    if number:
        return _of_signal(number, lines)
    chain = raised(lines, uncaught)
    handled = chain and not uncaught and (exit_code not in (None, UNCAUGHT) or _is_handled(chain[-1], uncaught))
    if handled and (after := _went_on(chain, lines)):
        found = _of_output(exit_code, after)
        return replace(found, advice=SEE_BOTH) if found.kind == "exit" else found
    if chain:
        diagnosis, before = of_chain(chain), lines[: chain[0].begin]
        ended = next((one for one in reversed(chain) if reported_exit(one.message)), None)
        if diagnosis.kind == "exit" and ended is not None:  # of a lost connection to a process, and how that one ended
            diagnosis = replace(of_exception(ended), where=diagnosis.where)
        limit = _of_limit(before) if diagnosis.kind == "signal" else None
        return limit or _of_started(diagnosis, before, chain[-1].rest)
    return _of_output(exit_code, lines)


def _is_handled(last: RaisedException, uncaught: str | None) -> bool:
    """Return True if an exception did not end its program although that exited with code 1.

    The traceback of one that is caught begins at the `try`, that of an uncaught one at the program's outermost call.
    """
    return uncaught is not None or (bool(last.frames) and last.frames[0].function not in OUTERMOST)


def _went_on(chain: Sequence[RaisedException], lines: Sequence[str]) -> list[str]:
    """The output after an exception that the program printed and handled; empty if that was all it said.

    What only announces the end of the program, or repeats the exception, does not count. Nor does anything after an
    exception that a library printed: it ended a thread or a process of the program.
    """
    if chain[-1].frames and not chain[-1].frames[0].is_own:
        return []
    after = [line for line in lines[chain[-1].end + 1 :] if not FURTHER.match(line)]
    said = [line for line in after if line[:1].strip() and not WRAPPER.match(line) and not MILD.match(line)]
    return after if not all(_only_ends(line, chain) for line in said) else []


def _only_ends(line: str, chain: Sequence[RaisedException]) -> bool:
    """Return True if a line says no more than that the program ends, or repeats one of these exceptions."""
    short = [one.name.rpartition(".")[2] for one in chain]
    texts = [*(one.message for one in chain if len(one.message) > 2), *short]
    if any(text in line for text in texts) or reported_exit(line) == UNCAUGHT:
        return True
    return _is_plain_end(line)


def _is_plain_end(line: str) -> bool:
    return all(word in ENDING or word.isdigit() for word in WORD.findall(line.lower()))


def _of_limit(lines: Sequence[str]) -> Diagnosis | None:
    """The diagnosis of a limit that made a library interrupt its own process."""
    errors = (of_known(line) for line in reversed(lines))
    return next((replace(one, error=None) for one in errors if one is not None and one.kind == "limit"), None)


def _of_signal(number: int, lines: Sequence[str]) -> Diagnosis:
    name, kind, words, advice = SIGNALS.get(
        number, (f"signal {number}", "signal", "sent from outside the job", OUTSIDE)
    )
    where = crashed_at(lines)
    if number in REAL_TIME:
        words, advice = "a signal that the program or a library uses itself, or sent from outside the job", OUTSIDE
    if kind == "killed" and any(OOM_KILLED.search(line) for line in lines):
        return Diagnosis("out_of_memory", "out of memory", MEMORY, signal=name)
    if kind == "aborted":
        diagnosis = _of_output(None, [line for line in lines if not OF_FAULTHANDLER.match(line)])
        if diagnosis.kind != "exit":
            return replace(diagnosis, signal=name)
        words = diagnosis.words or (f"{words} at {where}" if where else words)
    limit = _of_limit(lines) if name == "SIGINT" else None
    if limit is not None:
        return replace(limit, signal=name)
    return Diagnosis(kind, words, advice, signal=name, where=where, about_peer=kind == "peer_gone")


def _of_started(diagnosis: Diagnosis, before: Sequence[str], rest: Sequence[str]) -> Diagnosis:
    """If an exception reports the end of another process, diagnose that process from the output before it."""
    error = diagnosis.error or "" if diagnosis.kind == "exception" else ""
    of_children = error.startswith(OF_CHILDREN)
    code = reported_exit(" ".join((error, *rest)) if of_children else error)
    if not code and not of_children:
        return diagnosis
    inner = diagnose(code, before)
    if not code:
        return inner if inner.kind not in ("exit", "exception") else diagnosis
    ended = f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"
    if inner.advice.startswith(OUTSIDE):  # nobody has seen who sent a signal to that process
        inner = replace(inner, words="", advice=OF_CHILD + inner.advice[len(OUTSIDE) :])
    words = f"a process that it started {ended}" + (f" ({inner.words})" if inner.words else "")
    if inner.kind == "exit":
        return replace(diagnosis, words=words)
    return replace(inner, words=words, error=diagnosis.error, where=diagnosis.where, signal=None)


def _of_output(exit_code: int | None, lines: Sequence[str]) -> Diagnosis:
    """The diagnosis without a traceback: from the last lines, or else from the exit code."""
    lines = without_stacks(lines)
    stacks = next((at for at, line in enumerate(lines) if GO_STACKS.match(line)), len(lines))
    shown = [line for line in lines[:stacks] if line.strip() and not CALL.match(line) and not OF_SHELL.match(line)]
    last = _with_causes(shown[-LOOKED_AT:])
    grave = [line for line in last if not MILD.match(line)]
    last = last if all(_is_plain_end(line) for line in grave) else grave
    rejected = [line for line in last if PROGRAM_ERROR.match(line)] if exit_code == USAGE else []
    diagnosis = _of_lines([line.partition(" (choose from ")[0] for line in rejected[-1:]] or last)
    if diagnosis is not None:
        return diagnosis
    if rejected:
        words = f"the program rejected its arguments: {_quoted(rejected)}"
        return Diagnosis("usage", words, "pass the program's arguments to start after --", rejected[-1].strip())
    if exit_code in SHELL_CODES:
        named = next((match for line in reversed(last) if (match := CANNOT_RUN.match(line))), None)
        like = SHELL_CODES[exit_code]
        return replace(like, words=like.words.replace("a command", f"the command {named[1]}")) if named else like
    if not last:
        return Diagnosis(
            "exit", "", f"it printed no reason: find where it exits with {exit_code}, or run it alone on {{node}}"
        )
    return Diagnosis("exit", f'"{_quoted(last)}"', "it exited on its own; see its last lines")


def _of_lines(last: Sequence[str]) -> Diagnosis | None:
    """The last error in these lines: the process's own before those about peers, the system's before the program's."""
    loading = [line for line in last if LIBRARY.search(line) or LOADER.search(line)]
    if loading:
        return of_import(Diagnosis("import_error", error=loading[-1].strip()), loading[-1])
    causes = [one for line in last if CAUSE_IN_JS.match(line) and (one := _of_line(line)) is not None]
    errors = causes or [one for line in last if (one := _of_line(line)) is not None]
    errors = [one for one in errors if not one.about_peer] or errors
    errors = [one for one in errors if one.kind != "exception"] or errors
    if errors:  # of several lines about the same error, prefer one with a subject
        return next((one for one in reversed(errors) if one.subject and one.kind == errors[-1].kind), errors[-1])
    if any(NO_MEMORY.search(unquoted(line)) or BAD_ALLOC in line for line in last):
        return Diagnosis("out_of_memory", "out of memory", MEMORY)
    return None


def _with_causes(lines: Sequence[str]) -> list[str]:
    """Append the causes that a program in Rust lists below its error to that error, as one line."""
    joined: list[str] = []
    inside = False
    for line in lines:
        cause = CAUSE.fullmatch(line)
        if line == CAUSED_BY and joined:
            inside = True
        elif inside and cause:
            joined[-1] += f": {cause[1]}"
        else:
            inside = False
            joined.append(line)
    return joined


def _of_line(line: str) -> Diagnosis | None:
    """The diagnosis of the system error or the exception in a line, if there is one."""
    named, module, known, panic = NAMED.match(line), NO_MODULE.match(line), of_known(line), PANIC.match(line)
    if known:
        return replace(known, error=line.strip())
    if named:
        return of_exception(RaisedException(named[1], (named[2] or "").strip()))
    if module:
        return of_exception(RaisedException("ModuleNotFoundError", f"No module named '{module[1]}'"))
    error = None if OF_PYTEST.match(line) else of_status(line) or of_errno(line) or of_format(line)
    if error or not panic:
        return replace(error, error=line.strip()) if error else None
    return Diagnosis("exception", panic[1], "fix the program, or its data", line.strip())


def _quoted(last: Sequence[str]) -> str:
    """The last line that looks like an error, or else the last line; for display only."""
    line = next((line for line in reversed(last) if TROUBLE.search(line)), last[-1]).strip()
    return line if len(line) <= QUOTED_CHARS else line[:QUOTED_CHARS] + "..."
