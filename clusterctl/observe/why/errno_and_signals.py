"""Error numbers and signals of Linux, each with its meaning and a remedy."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from clusterctl.common.requirements import FILE, RUNTIME, normal
from clusterctl.observe.why.translations import TRANSLATIONS

SHELL_SIGNALS = 128  # a shell reports signal n as exit code 128 + n
ERRNO_NUMBER = re.compile(r"\b[Ee]rrno[ =:]{1,3}(-?\d{1,9})\b|\(os error (\d{1,9})\)|\bOs \{ code: (\d{1,9})\b")
RESOLVER = re.compile(r"\[Errno -\d+\]")  # as Python writes errors of getaddrinfo
ERRNO_NAME = re.compile(r"\bE[A-Z]{3,14}\b")
#: Also in the quotation marks of other languages.
QUOTED = re.compile(
    "(?:(?<!\\w)['\"`]|[\u2018\u201c\u201e]|\u00ab\\s?)"
    "([^'\"`\n\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb]+?)(?:['\"\u2019\u201c\u201d]|\\s?\u00bb)"
)
#: Text in quotation marks, with the apostrophes in it: a name or data, never what the system reports.
QUOTATION = re.compile(
    r"(?<!\w)(?:'(?:[^'\n]|(?<=\w)'(?=\w))*'|\"[^\"\n]*\"|`[^`\n]*[`'])|"
    r"\u2018[^\u2018\u2019\n]*\u2019|\u201c[^\u201c\u201d\n]*\u201d"
)
#: Texts in which programs report the end of another process.
ENDED = re.compile(
    r"\bexit ?(?:status|code) {0,4}[:=]? ?(-?\d{1,3})\b|"
    r"\b(SIG[A-Z]{2,6})\b|\bsignal:? (\d{1,2}|[A-Z][a-z]+(?: [a-z]+)*)"
)


@dataclass(frozen=True)
class Diagnosis:
    """The reason for a failure. `kind` is for programs, `words` for people ("" if the exit code is explanation enough).

    `subject` is the module, library, command or path concerned. `about_peer`: the process complains about another one.
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
    """One `errno` of Linux: nodes run Linux, even if this machine does not."""

    number: int
    text: str
    kind: str
    advice: str
    about_peer: bool = False


LOOK_AT_PEER = "check the process it was talking to and the network between them: clusterctl check tries all pairs"
PATHS = "compare the nodes: clusterctl exec --in-job {job} -- ls -ld {subject}"
LIBRARY_PATH = "install it on {node}, or add its directory to LD_LIBRARY_PATH in conf.py"
SPACE = (
    "clusterctl exec -- df -h shows full disks, df -i those with too many files; clusterctl prune removes old jobs; "
    "ROOT_DIR may be on another disk"
)
MEMORY = (
    "use less memory (smaller batches, fewer processes per node), or nodes that have more; "
    "a Slurm job has what it asks for (--mem)"
)
FILES = "raise OPEN_FILES in conf.py, up to the limit of the node (ulimit -Hn)"
LOCKED = (
    "another process has it open: lsof and fuser on {node} show which; give each process a file of its own, or open it "
    "read-only"
)
NO_LOCKS = (
    "its file system, often a network one, has no lock service: put it on a local disk, or turn locking off "
    "(HDF5_USE_FILE_LOCKING=FALSE in ENV for HDF5)"
)
NUMBERS = "lower the learning rate, clip gradients (ps.steps(clip=...)), or check the data of that step"
DISK = "the disk or its mount has failed: see dmesg on {node}"
ERRNOS: Mapping[str, Errno] = {
    "ENOSPC": Errno(28, "No space left on device", "no_space", SPACE),
    "EDQUOT": Errno(122, "Disk quota exceeded", "no_space", SPACE),
    "EFBIG": Errno(27, "File too large", "no_space", "a limit on the size of files was exceeded (ulimit -f)"),
    "EADDRINUSE": Errno(
        98,
        "Address already in use",
        "address_in_use",
        "clusterctl exec -- ss -ltnp shows the process that has it; choose another port",
    ),
    "EADDRNOTAVAIL": Errno(
        99,
        "Cannot assign requested address",
        "address",
        "{node} does not have that address: set NIC or Host(address=...)",
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
    "EPERM": Errno(1, "Operation not permitted", "permission", "this account is not allowed to do that on {node}"),
    "EROFS": Errno(30, "Read-only file system", "permission", DISK),
    "ENOENT": Errno(2, "No such file or directory", "missing_file", PATHS),
    "ENOTDIR": Errno(20, "Not a directory", "missing_file", PATHS),
    "EISDIR": Errno(21, "Is a directory", "wrong_file", PATHS),
    "EEXIST": Errno(17, "File exists", "wrong_file", PATHS),
    "ENOEXEC": Errno(
        8, "Exec format error", "wrong_program", "{node} cannot run it: was it built for another machine?"
    ),
    "ENOMEM": Errno(12, "Cannot allocate memory", "out_of_memory", MEMORY),
    "EAGAIN": Errno(
        11, "Resource temporarily unavailable", "limit", "a limit of the account was reached (ulimit -u, threads)"
    ),
    "ENOLCK": Errno(37, "No locks available", "busy", NO_LOCKS),
    "EMFILE": Errno(24, "Too many open files", "open_files", FILES),
    "ENFILE": Errno(23, "Too many open files in system", "open_files", FILES),
    "EIO": Errno(5, "Input/output error", "disk", DISK),
    "ESTALE": Errno(116, "Stale file handle", "disk", "a network file system lost the file: mount it again"),
    "EUCLEAN": Errno(117, "Structure needs cleaning", "disk", DISK),
    "ENODEV": Errno(19, "No such device", "device", "{node} lacks the device: is its driver loaded?"),
    "ENXIO": Errno(6, "No such device or address", "device", "{node} lacks the device: is its driver loaded?"),
    "EBUSY": Errno(16, "Device or resource busy", "busy", "another process is using it on {node}"),
}
NAMES_BY_TEXT = {error.text.lower(): name for name, error in ERRNOS.items()}
NAMES_BY_TRANSLATION = {text: name for name, texts in TRANSLATIONS.items() for text in texts.split("|")}
#: One of these in its place at the end of a message, where programs in any language put it.
TRANSLATED = re.compile(
    rf"(?:^|[:\uff1a]\s?)({'|'.join(sorted(map(re.escape, NAMES_BY_TRANSLATION), key=len, reverse=True))})"
    r"(?=$|[\s.,:;!()\u3002\uff1a\uff0c])"
)
#: The end of a tool's message about a path, before the system's: `cat: data/x: TEXT`, `tar: x.tar: Cannot open: TEXT`.
ABOUT_PATH = re.compile(r"(?:^|: )(?=[^\s:'\"/.]*[/.])([^\s:'\"]+)[:\uff1a] ?(?:[\w ]{1,40}: )?$")
#: The address of a process, as gRPC, Go and others name it.
ENDPOINT = re.compile(r"(?<![\w.])(?:ipv4:)?((?:\d{1,3}\.){3}\d{1,3}:\d{1,5})(?!\d)")
LOCKING = re.compile(r"\b(?:un)?lock(?:s|ed|ing)?\b|\bflock\b|/LOCK\b", re.IGNORECASE)
#: One of the system's messages, the longest first; not as a part of a name or a path.
SYSTEM_TEXT = re.compile(
    rf"(?<![\w/-])({'|'.join(sorted(map(re.escape, NAMES_BY_TEXT), key=len, reverse=True))})(?![\w/-]|\.\w)",
    re.IGNORECASE,
)
NAMES = {error.number: name for name, error in ERRNOS.items()}

CRASH = (
    "a bug in native code, or an extension built for another CPU: run it alone on {node} with python -X faulthandler"
)
OUTSIDE = (
    "clusterctl did not send it: a person on {node}, a batch system or the kernel did (see dmesg there), if not the "
    "program itself"
)
OWN_TIMER = (
    "the program or one of its libraries set this timer itself: handle the signal, cancel the timer in time, or set a "
    "longer one"
)
NOT_HANDLED = (
    "a batch system, a tool or the program itself sends it to programs that handle it, and this one did not: install a "
    "handler, or do not send it"
)
TRAP = (
    "the program or a library stopped itself on a failed check (__builtin_trap, abort of a sanitizer), or ran into a "
    "breakpoint without a debugger: run it alone on {node} with python -X faulthandler"
)
#: By number on Linux: name, kind, words, advice.
SIGNALS: Mapping[int, tuple[str, str, str, str]] = {
    1: ("SIGHUP", "signal", "sent from outside the job", OUTSIDE),
    2: ("SIGINT", "signal", "sent from outside the job", OUTSIDE),
    3: ("SIGQUIT", "signal", "sent from outside the job", OUTSIDE),
    4: (
        "SIGILL",
        "illegal_instruction",
        "illegal instruction",
        "it was built for a CPU with features that {node} lacks",
    ),
    5: ("SIGTRAP", "crash", "a trap of the program's own, or a breakpoint", TRAP),
    6: ("SIGABRT", "aborted", "it called abort()", "see its last lines: often an assertion or a C++ exception"),
    7: (
        "SIGBUS",
        "bus_error",
        "bus error",
        "a mapped file was truncated, or its disk is full: check df -h, also for /dev/shm",
    ),
    8: ("SIGFPE", "crash", "arithmetic fault", CRASH),
    9: ("SIGKILL", "killed", "sent from outside the job", OUTSIDE + "; out of memory is the usual reason"),
    10: ("SIGUSR1", "signal", "a signal for the program, which did not handle it", NOT_HANDLED),
    11: ("SIGSEGV", "segfault", "segmentation fault", CRASH),
    12: ("SIGUSR2", "signal", "a signal for the program, which did not handle it", NOT_HANDLED),
    13: ("SIGPIPE", "peer_gone", "the process it was writing to was gone", LOOK_AT_PEER),
    14: ("SIGALRM", "signal", "an alarm that the program had set itself", OWN_TIMER),
    15: (
        "SIGTERM",
        "signal",
        "sent from outside the job",
        OUTSIDE + "; a node that shuts down sends it to every process",
    ),
    24: ("SIGXCPU", "limit", "CPU time limit exceeded", "a limit of the account on {node} (ulimit -t)"),
    25: ("SIGXFSZ", "no_space", "file size limit exceeded", "a limit of the account on {node} (ulimit -f)"),
    26: ("SIGVTALRM", "signal", "a timer of CPU time that the program had set itself", OWN_TIMER),
    27: ("SIGPROF", "signal", "a profiling timer that the program had set itself", OWN_TIMER),
    29: ("SIGIO", "signal", "a signal for input that the program had asked for, and did not handle", NOT_HANDLED),
    30: ("SIGPWR", "signal", "a power failure, or a signal of a language's runtime", NOT_HANDLED),
    31: ("SIGSYS", "crash", "forbidden system call", "a sandbox on {node} blocks it"),
}
REAL_TIME = range(32, 65)  # which programs and their libraries use among themselves, for timers, too
#: The system's own descriptions of signals.
SIGNAL_TEXTS: Mapping[str, int] = {
    "Aborted": 6,
    "Alarm clock": 14,
    "Bad system call": 31,
    "Bus error": 7,
    "CPU time limit exceeded": 24,
    "File size limit exceeded": 25,
    "Floating point exception": 8,
    "Illegal instruction": 4,
    "Killed": 9,
    "Profiling timer expired": 27,
    "Segmentation fault": 11,
    "Terminated": 15,
    "Trace/breakpoint trap": 5,
    "User defined signal 1": 10,
    "User defined signal 2": 12,
    "Virtual timer expired": 26,
}
SIGNAL_NUMBERS: Mapping[str, int] = {**SIGNAL_TEXTS, **{name: number for number, (name, *_) in SIGNALS.items()}}

#: Exit codes that have a meaning in a shell.
SHELL_CODES: Mapping[int | None, Diagnosis] = {
    126: Diagnosis("permission", "a command is not executable", "run chmod +x on it, or check its first line"),
    127: Diagnosis("missing_program", "a command was not found", "install it on {node}, or fix its name or PATH"),
}


def signal_of(exit_code: int | None) -> int:
    """Return the signal that killed a process, also if a shell reported it; 0 if no signal did."""
    if exit_code is None or 0 <= exit_code <= SHELL_SIGNALS:
        return 0
    number = -exit_code if exit_code < 0 else exit_code - SHELL_SIGNALS
    return number if exit_code < 0 or number in SIGNALS else 0


def unquoted(text: str) -> str:
    return QUOTATION.sub("''", text)


def unresolved(host: str | None) -> Diagnosis:
    """Return the diagnosis of a host name that could not be resolved, if it is known which one."""
    words = f"the host name {host} could not be resolved" if host else "a host name could not be resolved"
    return Diagnosis(
        "name_not_found", words, "{node} cannot resolve the name: fix /etc/hosts or DNS there", subject=host
    )


def of_errno(text: str) -> Diagnosis | None:
    """Return the diagnosis of the system error in a text, by its number, its name or the system's message.

    Quoted text does not count, except as the error's subject.
    """
    if RESOLVER.search(text):
        return unresolved(None)
    name = _named_errno(unquoted(text))
    if name is None:
        return None
    error = ERRNOS[name]
    at = text.lower().find(error.text.lower())
    if at < 0:
        translated = TRANSLATED.search(text)
        at = translated.start(1) if translated else 0
    subject = _endpoint_in(text, at) if error.about_peer else _path_in(text, at)
    if name == "EAGAIN" and LOCKING.search(text):
        return locked(subject)
    return of_name(name, None if subject == name else subject)


def locked(subject: str | None) -> Diagnosis:
    """Return the diagnosis of a file, perhaps known, that another process has locked."""
    words = f"another process has locked {subject or 'the file'}"
    return Diagnosis("busy", words, LOCKED, errno="EAGAIN", subject=subject)


def _endpoint_in(text: str, at: int) -> str | None:
    """Return the address or the name of the process that an error about another process names."""
    match, quoted = ENDPOINT.search(text), _path_in(text, at)
    return match[1] if match else quoted if quoted and re.search("[.:/]", quoted) else None


def of_name(name: str | None, subject: str | None) -> Diagnosis | None:
    """Return the diagnosis of the error of this name, about a path or command; None if it is not in the table."""
    error = ERRNOS.get(name or "")
    if error is None:
        return None
    words = error.text[0].lower() + error.text[1:] + (f": {subject}" if subject else "")
    advice = error.advice if "{subject}" not in error.advice or subject else "see its last lines for the path"
    return Diagnosis(error.kind, words, advice, errno=name, subject=subject, about_peer=error.about_peer)


def _path_in(text: str, at: int) -> str | None:
    """Return the quoted text after position `at`, or else before it, or a path right before it."""
    after = QUOTED.search(text, at)
    if after and ". " in text[at : after.start()]:  # of another sentence
        after = None
    before = [match[1] for match in QUOTED.finditer(text, 0, at)] or ABOUT_PATH.findall(text[:at])
    return after[1] if after else before[-1] if before else None


def _named_errno(text: str) -> str | None:
    number = ERRNO_NUMBER.search(text)
    if number:  # some programs print it as the kernel returns it, negative
        return NAMES.get(abs(int(number[1] or number[2] or number[3])))
    for word in ERRNO_NAME.finditer(text):
        if word[0] in ERRNOS:
            return str(word[0])
    match = SYSTEM_TEXT.search(text)
    if match:
        return NAMES_BY_TEXT[match[1].lower()]
    translated = TRANSLATED.search(text)
    return NAMES_BY_TRANSLATION[translated[1]] if translated else None


def reported_exit(text: str) -> int | None:
    """Return the exit code, -n for signal n, of another process that a text reports; None if it reports none."""
    matches = list(ENDED.finditer(text))
    if not matches:
        return None
    code, name, signal = matches[-1].groups()  # the command may be quoted before it
    if code:
        return int(code)
    number = int(signal) if signal and signal.isdigit() else SIGNAL_NUMBERS.get(name or signal, 0)
    return -number or None


CLASS = "ModuleNotFoundError"
ON_PATH = "add its directory to PYTHONPATH in ENV"
MODULE = re.compile(r"\w+(?:\.\w+)*")
#: Modules that are named differently from the projects that contain them.
PROJECTS = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}


class ModuleAdvice(NamedTuple):
    """Explain whether the requirements include the module, and what to do."""

    note: str
    advice: str


def find(diagnosis: Diagnosis, answer: Mapping[str, Any]) -> ModuleAdvice | None:
    """Return a finding if the job's requirements explain the missing module.

    `answer` is the report of the node: `requirements` has the names of the projects in `requirements_file`, None if
    they are not known, and `environment` the name of the environment that `setup` made for it.
    """
    names, module = answer.get("requirements"), diagnosis.subject or ""
    is_import = diagnosis.kind == "import_error" and (diagnosis.error or "").startswith(CLASS)
    if names is None or not is_import or not MODULE.fullmatch(module):
        return None
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return None
    project = PROJECTS.get(top, top)
    file = answer.get("requirements_file") or FILE
    if normal(project) not in names:
        if project in RUNTIME:  # `setup` adds these
            return None
        what = top if project == top else f"{top} (the project {project})"
        step = f"add {project} to {file}" if file == FILE else f"add {project} to the project and lock it again"
        advice = f"{step}, then run clusterctl setup WORKSPACE; or, if {top} is a file of the job, {ON_PATH}"
        return ModuleAdvice(f"{what} is not in {file}", advice)
    if answer.get("environment") is None:
        note = f"{project} is in {file}, but the run had no environment made by clusterctl setup"
        return ModuleAdvice(note, "to create it: clusterctl setup WORKSPACE")
    return None
