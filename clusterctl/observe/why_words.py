"""How a process ended, in words: by its signal or exit code, the exception that it raised, and the system's errors.

What is looked at is structure: the last traceback and its class, `errno` by number, name or the system's own text, the
signal. So that a program that nobody here knows is understood as far as it speaks as the system does.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clusterctl.observe.why_traceback import Raised, raised

LOOKED_AT = 12  # last lines, where there is no traceback
SHELL_SIGNALS = 128  # a shell tells signal n as exit code 128 + n
CLASS_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
ERRNO_NUMBER = re.compile(r"\b[Ee]rrno[ =:]{1,3}(-?\d+)|\(os error (\d+)\)")
ERRNO_NAME = re.compile(r"\bE[A-Z]{3,14}\b")
#: From a blank on: else its time would be quadratic.
LIBRARY = re.compile(r"(?<!\S)(\S+\.so(?:\.\d+)*): cannot open shared object")
LOADER = re.compile(r"undefined symbol: (\S+)|version [`'](\S+?)' not found")
QUOTED = re.compile(r"['\"]([^'\"\n]+)['\"]")
NO_MEMORY = re.compile(r"out of memory|bad_alloc|can(?:no|')t allocate", re.IGNORECASE)
NOT_FINITE = re.compile(r"\bnan\b|\binf(?:inity)?\b|\b(?:not|non)[- ]?finite\b", re.IGNORECASE)
NETWORK = {"connection", "connect", "timeout", "timed", "unreachable", "unavailable", "network", "socket", "peer"}


@dataclass(frozen=True)
class Diagnosis:
    """`kind` is for programs, `words` for people ("" when there is nothing to add to the exit code), `about_peer` says
    that it complains of others. `subject` is the module, library or path that it is about.
    """

    kind: str
    words: str = ""
    advice: str = ""
    error: str | None = None
    where: str | None = None
    errno: str | None = None
    signal: str | None = None
    subject: str | None = None
    about_peer: bool = False


@dataclass(frozen=True)
class Errno:
    """One `errno` of Linux, which the nodes run whatever this machine does."""

    number: int
    text: str
    kind: str
    advice: str
    about_peer: bool = False


LOOK_AT_PEER = "look at whom it talks to, and at the way there: clusterctl check tries all pairs"
PATHS = "compare the nodes: clusterctl exec -- ls -ld {subject}"
SPACE = "clusterctl exec -- df -h shows who is full; clusterctl prune removes old jobs; ROOT_DIR can be elsewhere"
MEMORY = "use less (smaller batches, fewer processes per node), or nodes that have more"
FILES = "OPEN_FILES in conf.py raises the limit as far as the node allows (ulimit -Hn)"
NUMBERS = "a smaller learning rate, clipping (ps.steps(clip=...)), or a look at the data of that step"
DISK = "the disk or its mount is at fault: look at dmesg on {node}"
ERRNOS: Mapping[str, Errno] = {
    "ENOSPC": Errno(28, "No space left on device", "no_space", SPACE),
    "EDQUOT": Errno(122, "Disk quota exceeded", "no_space", SPACE),
    "EFBIG": Errno(27, "File too large", "no_space", "a limit on the size of files (ulimit -f) was met"),
    "EADDRINUSE": Errno(
        98, "Address already in use", "address_in_use", "clusterctl exec -- ss -ltnp shows who has it; choose another"
    ),
    "EADDRNOTAVAIL": Errno(
        99, "Cannot assign requested address", "address", "that address is not one of {node}: NIC or Host(address=...)"
    ),
    "ECONNREFUSED": Errno(111, "Connection refused", "peer_refused", LOOK_AT_PEER, about_peer=True),
    "ECONNRESET": Errno(104, "Connection reset by peer", "peer_gone", LOOK_AT_PEER, about_peer=True),
    "ECONNABORTED": Errno(103, "Software caused connection abort", "peer_gone", LOOK_AT_PEER, about_peer=True),
    "ENOTCONN": Errno(107, "Transport endpoint is not connected", "peer_gone", LOOK_AT_PEER, about_peer=True),
    "EPIPE": Errno(32, "Broken pipe", "peer_gone", LOOK_AT_PEER, about_peer=True),
    "ETIMEDOUT": Errno(110, "Connection timed out", "peer_silent", LOOK_AT_PEER, about_peer=True),
    "EHOSTUNREACH": Errno(113, "No route to host", "peer_unreachable", LOOK_AT_PEER, about_peer=True),
    "ENETUNREACH": Errno(101, "Network is unreachable", "peer_unreachable", LOOK_AT_PEER, about_peer=True),
    "EACCES": Errno(13, "Permission denied", "permission", PATHS),
    "EPERM": Errno(1, "Operation not permitted", "permission", "this account may not do that on {node}"),
    "EROFS": Errno(30, "Read-only file system", "permission", DISK),
    "ENOENT": Errno(2, "No such file or directory", "missing_file", PATHS),
    "ENOTDIR": Errno(20, "Not a directory", "missing_file", PATHS),
    "EISDIR": Errno(21, "Is a directory", "wrong_file", PATHS),
    "EEXIST": Errno(17, "File exists", "wrong_file", PATHS),
    "ENOEXEC": Errno(8, "Exec format error", "wrong_program", "built for another machine? {node} cannot run it"),
    "ENOMEM": Errno(12, "Cannot allocate memory", "out_of_memory", MEMORY),
    "EAGAIN": Errno(
        11, "Resource temporarily unavailable", "limit", "a limit of the account was met (ulimit -u, threads)"
    ),
    "EMFILE": Errno(24, "Too many open files", "open_files", FILES),
    "ENFILE": Errno(23, "Too many open files in system", "open_files", FILES),
    "EIO": Errno(5, "Input/output error", "disk", DISK),
    "ESTALE": Errno(116, "Stale file handle", "disk", "a network file system lost the file: mount it again"),
    "EUCLEAN": Errno(117, "Structure needs cleaning", "disk", DISK),
    "ENODEV": Errno(19, "No such device", "device", "{node} lacks the device: is its driver loaded?"),
    "ENXIO": Errno(6, "No such device or address", "device", "{node} lacks the device: is its driver loaded?"),
    "EBUSY": Errno(16, "Device or resource busy", "busy", "somebody else uses it on {node}"),
}
NAMES = {error.number: name for name, error in ERRNOS.items()}

WAIT_FOR_EACH_OTHER = (
    "the stacks in the logs show for what; all trainers have to make the same tables, and a save may take no longer than "
    "STALL_S; else it is a fault of the pserver. start --resume goes on from the last checkpoint"
)
CRASH = "a fault in native code: run it alone on {node} with python -X faulthandler; an extension may not fit its CPU"
OUTSIDE = "nobody of this job sent it: somebody on {node}, a batch system, or the kernel did (dmesg there tells)"
#: By number on Linux: name, kind, words, advice.
SIGNALS: Mapping[int, tuple[str, str, str, str]] = {
    1: ("SIGHUP", "signal", "from outside", OUTSIDE),
    2: ("SIGINT", "signal", "from outside", OUTSIDE),
    3: ("SIGQUIT", "signal", "from outside", OUTSIDE),
    4: ("SIGILL", "illegal_instruction", "illegal instruction", "it was built for a CPU with more than {node} has"),
    6: ("SIGABRT", "aborted", "it gave up by itself (abort)", "its last lines say why; an assertion or a C++ error"),
    7: ("SIGBUS", "bus_error", "bus error", "a mapped file was cut short or its disk is full: df -h, also of /dev/shm"),
    8: ("SIGFPE", "crash", "arithmetic fault", CRASH),
    9: ("SIGKILL", "killed", "from outside", OUTSIDE + "; out of memory is the usual reason"),
    11: ("SIGSEGV", "segfault", "segmentation fault", CRASH),
    13: ("SIGPIPE", "peer_gone", "whom it wrote to was gone", LOOK_AT_PEER),
    15: ("SIGTERM", "signal", "from outside", OUTSIDE + "; a node that shuts down does this to all"),
    24: ("SIGXCPU", "limit", "its CPU time was used up", "a limit of the account (ulimit -t) on {node}"),
    25: ("SIGXFSZ", "no_space", "file size limit", "a limit of the account (ulimit -f) on {node}"),
    31: ("SIGSYS", "crash", "a forbidden system call", "a sandbox on {node} does not let it"),
}

USAGE = 2
PROGRAM_ERROR = re.compile(r"\S+: error: ")  # as argparse and others put it
#: What a shell says by its exit code.
SHELL_CODES: Mapping[int | None, Diagnosis] = {
    126: Diagnosis("permission", "a command may not be executed", "chmod +x it, or look at its first line"),
    127: Diagnosis("missing_program", "a command was not found", "is it installed on {node}, and in its PATH?"),
}


def diagnose(exit_code: int | None, lines: Sequence[str], *, oom: bool = False, stalled: bool = False) -> Diagnosis:
    """What the end of a process means. `exit_code` is -n for signal n; None for something that did not end."""
    chain = raised(lines)
    if oom:
        return Diagnosis("out_of_memory", "out of memory", MEMORY, signal="SIGKILL")
    if stalled:
        advice = "the stacks of its threads are in its log: they show where it stood still"
        return Diagnosis("stalled", "it stood still", advice, signal="SIGKILL")
    number = signal_of(exit_code)
    if number:
        return _of_signal(number, lines)
    if chain:
        return _of_chain(chain)
    return _of_words(exit_code, lines)


def signal_of(exit_code: int | None) -> int:
    """The signal of which a process died, also where a shell reported it; 0 for none."""
    if exit_code is None or 0 <= exit_code <= SHELL_SIGNALS:
        return 0
    number = -exit_code if exit_code < 0 else exit_code - SHELL_SIGNALS
    return number if exit_code < 0 or number in SIGNALS else 0


def _of_signal(number: int, lines: Sequence[str]) -> Diagnosis:
    name, kind, words, advice = SIGNALS.get(number, (f"signal {number}", "signal", "from outside", OUTSIDE))
    if number == 6:
        said = _of_words(None, lines)
        if said.kind != "exit":
            return replace(said, signal=name)
    place = next((line.strip() for line in lines if line.lstrip().startswith("File ")), None)
    fatal = any(line.startswith("Fatal Python error:") for line in lines)
    return Diagnosis(kind, words, advice, signal=name, where=place if fatal else None, about_peer=kind == "peer_gone")


def _of_chain(chain: Sequence[Raised]) -> Diagnosis:
    """Of exceptions that led to each other the first one that tells something, else the last."""
    found = [_of_exception(one) for one in chain]
    if chain[-1].direct or found[-1].kind == "exception":
        return next((one for one in found if one.kind != "exception"), found[0] if chain[-1].direct else found[-1])
    return found[-1]


def _of_exception(one: Raised) -> Diagnosis:
    """By its place among Python's own exceptions, by the words of its name, by what the system says in its message."""
    short = one.name.rpartition(".")[2]
    error = f"{short}: {one.message}" if one.message else short
    plain = Diagnosis("exception", error, "mend the program, or the data that it met", error, one.where)
    words = {word.lower() for word in CLASS_WORDS.findall(short)}
    kind = getattr(builtins, short, None)
    kind = kind if isinstance(kind, type) and issubclass(kind, BaseException) else Exception
    by_system = _of_errno(one.message)
    if issubclass(kind, MemoryError) or "memory" in words or NO_MEMORY.search(one.message):
        found = replace(plain, kind="out_of_memory", words="out of memory", advice=MEMORY)
    elif issubclass(kind, ImportError) or LIBRARY.search(one.message):
        found = _of_import(plain, one.message)
    elif issubclass(kind, SyntaxError):
        advice = "the program is not right for the Python of {node}"
        found = replace(plain, kind="syntax_error", words=f"syntax error: {one.message}", advice=advice)
    elif by_system is not None:
        found = replace(by_system, error=error, where=one.where)
    elif issubclass(kind, ConnectionError | TimeoutError) or words & NETWORK:
        found = replace(plain, kind="peer_silent", advice=LOOK_AT_PEER, about_peer=True)
    elif issubclass(kind, FloatingPointError) or words & {"finite", "nan"} or NOT_FINITE.search(one.message):
        found = replace(plain, kind="not_finite", advice=NUMBERS)
    elif issubclass(kind, KeyboardInterrupt):
        found = replace(plain, kind="signal", words="from outside", advice=OUTSIDE)
    else:
        found = plain
    return found


def _of_import(plain: Diagnosis, message: str) -> Diagnosis:
    library, symbol, module = LIBRARY.search(message), LOADER.search(message), QUOTED.search(message)
    if library:
        advice = "install it there, or let LD_LIBRARY_PATH in conf.py name its directory"
        words = f"the library {library[1]} is missing"
        return replace(plain, kind="missing_library", words=words, advice=advice, subject=library[1])
    if symbol:
        advice = "its libraries do not fit together: clusterctl setup makes the same environment on every node"
        words = "a library there is of another version"
        return replace(plain, kind="wrong_library", words=words, advice=advice, subject=symbol[1] or symbol[2])
    name = module[1] if module else None
    advice = "clusterctl setup makes the same environment on every node, from the workspace's requirements.txt"
    if name and name.partition(".")[0] in sys.stdlib_module_names:
        advice = f"{name} is of Python's own library: the Python of {{node}} is another version, or not whole (PYTHON)"
    return replace(plain, kind="import_error", words=f"import error: {message}", advice=advice, subject=name)


def _of_errno(text: str) -> Diagnosis | None:
    """The system's error that a text tells of, by number, name, or in the system's words."""
    found = _named_errno(text)
    if found is None:
        negative = ERRNO_NUMBER.search(text)
        if negative and (negative[1] or "").startswith("-"):  # of the resolver
            advice = "the name means nothing on {node}: mend /etc/hosts or DNS there"
            return Diagnosis("name_not_found", "a host name could not be resolved", advice)
        return None
    name, error = found
    path = QUOTED.search(text, max(0, text.lower().find(error.text.lower())))
    words = error.text[0].lower() + error.text[1:] + (f": {path[1]}" if path else "")
    subject = path[1] if path else None
    advice = error.advice if "{subject}" not in error.advice or subject else "its last lines name what it is about"
    return Diagnosis(error.kind, words, advice, errno=name, subject=subject, about_peer=error.about_peer)


def _named_errno(text: str) -> tuple[str, Errno] | None:
    number = ERRNO_NUMBER.search(text)
    if number:
        name = NAMES.get(int(number[1] or number[2]))
        return (name, ERRNOS[name]) if name else None
    for word in ERRNO_NAME.findall(text):
        if word in ERRNOS:
            return word, ERRNOS[word]
    low = text.lower()
    fitting = [(name, error) for name, error in ERRNOS.items() if error.text.lower() in low]
    return max(fitting, key=lambda one: len(one[1].text), default=None)


def _of_words(exit_code: int | None, lines: Sequence[str]) -> Diagnosis:
    """Without a traceback: what the last lines say of the system; errors of one's own before those of others."""
    last = [line for line in lines if line.strip()][-LOOKED_AT:]
    loading = [line for line in last if LIBRARY.search(line) or LOADER.search(line)]
    if loading:
        return _of_import(Diagnosis("import_error", error=loading[-1].strip()), loading[-1])
    told = [(line, one) for line in last if (one := _of_errno(line)) is not None]
    own = [pair for pair in told if not pair[1].about_peer] or told
    if own:
        return replace(own[-1][1], error=own[-1][0].strip())
    if any(NO_MEMORY.search(line) for line in last):
        return Diagnosis("out_of_memory", "out of memory", MEMORY)
    if exit_code == USAGE and any(PROGRAM_ERROR.match(line) for line in last):
        return Diagnosis("usage", "the program does not take these arguments", "what it is given follows -- of start")
    if exit_code in SHELL_CODES:
        return SHELL_CODES[exit_code]
    advice = "its last lines are its own words: mend what they tell"
    return Diagnosis("exit", "", advice if last else "it wrote nothing at all: run it alone on {node}")
