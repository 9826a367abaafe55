"""How Linux tells of trouble: its error numbers and its signals, each with what it means and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SHELL_SIGNALS = 128  # a shell tells signal n as exit code 128 + n
ERRNO_NUMBER = re.compile(r"\b[Ee]rrno[ =:]{1,3}(-?\d+)|\(os error (\d+)\)")
RESOLVER = re.compile(r"\[Errno -\d+\]")  # as Python writes errors of getaddrinfo
ERRNO_NAME = re.compile(r"\bE[A-Z]{3,14}\b")
QUOTED = re.compile(r"(?<!\w)['\"]([^'\"\n]+)['\"]")
#: How programs tell of the end of another process.
ENDED = re.compile(
    r"\bexit ?(?:status|code) ?[:=]? ?(-?\d{1,3})\b|\b(SIG[A-Z]{2,6})\b|\bsignal:? (\d{1,2}|[A-Z][a-z]+(?: [a-z]+)*)"
)


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
#: As the system describes them.
SIGNAL_TEXTS: Mapping[str, int] = {
    "Aborted": 6,
    "Bus error": 7,
    "Floating point exception": 8,
    "Illegal instruction": 4,
    "Killed": 9,
    "Segmentation fault": 11,
    "Terminated": 15,
}
SIGNAL_NUMBERS: Mapping[str, int] = {**SIGNAL_TEXTS, **{name: number for number, (name, *_) in SIGNALS.items()}}

#: What a shell says by its exit code.
SHELL_CODES: Mapping[int | None, Diagnosis] = {
    126: Diagnosis("permission", "a command may not be executed", "chmod +x it, or look at its first line"),
    127: Diagnosis("missing_program", "a command was not found", "install it on {node}, or mend its name or PATH"),
}


def signal_of(exit_code: int | None) -> int:
    """The signal of which a process died, also where a shell reported it; 0 for none."""
    if exit_code is None or 0 <= exit_code <= SHELL_SIGNALS:
        return 0
    number = -exit_code if exit_code < 0 else exit_code - SHELL_SIGNALS
    return number if exit_code < 0 or number in SIGNALS else 0


def of_errno(text: str) -> Diagnosis | None:
    """The system's error that a text tells of, by number, name, or in the system's words."""
    if RESOLVER.search(text):
        advice = "the name means nothing on {node}: mend /etc/hosts or DNS there"
        return Diagnosis("name_not_found", "a host name could not be resolved", advice)
    found = _named_errno(text)
    if found is None:
        return None
    name, error = found
    subject = _path_in(text, max(0, text.lower().find(error.text.lower())))
    return of_number(name, None if subject == name else subject)


def of_number(name: str | None, subject: str | None) -> Diagnosis | None:
    """The system's error of this name, about that path or command; None for one that is not in the table."""
    error = ERRNOS.get(name or "")
    if error is None:
        return None
    words = error.text[0].lower() + error.text[1:] + (f": {subject}" if subject else "")
    advice = error.advice if "{subject}" not in error.advice or subject else "its last lines name what it is about"
    return Diagnosis(error.kind, words, advice, errno=name, subject=subject, about_peer=error.about_peer)


def _path_in(text: str, at: int) -> str | None:
    """What is quoted behind that place, else before it."""
    behind = QUOTED.search(text, at)
    before = [found[1] for found in QUOTED.finditer(text, 0, at)]
    return behind[1] if behind else before[-1] if before else None


def _named_errno(text: str) -> tuple[str, Errno] | None:
    number = ERRNO_NUMBER.search(text)
    if number:
        name = NAMES.get(abs(int(number[1] or number[2])))  # some write it as the kernel does, below 0
        return (name, ERRNOS[name]) if name else None
    for word in ERRNO_NAME.findall(text):
        if word in ERRNOS:
            return word, ERRNOS[word]
    low = text.lower()
    fitting = [(name, error) for name, error in ERRNOS.items() if error.text.lower() in low]
    return max(fitting, key=lambda one: len(one[1].text), default=None)


def told_end(text: str) -> int | None:
    """The exit code, -n for signal n, of a process whose end a text tells of; None if of none."""
    told = list(ENDED.finditer(text))
    if not told:
        return None
    code, name, signal = told[-1].groups()  # the command may be quoted before it
    if code:
        return int(code)
    number = int(signal) if signal and signal.isdigit() else SIGNAL_NUMBERS.get(name or signal, 0)
    return -number or None
