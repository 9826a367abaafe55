"""Diagnoses of Python exceptions, by their base class, the nouns in their names, and the system errors they quote."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterctl.observe.why.errno_and_signals import (
    LIBRARY_PATH,
    LOOK_AT_PEER,
    MEMORY,
    NUMBERS,
    OUTSIDE,
    QUOTED,
    SHELL_CODES,
    Diagnosis,
    locked,
    of_errno,
    unquoted,
    unresolved,
)
from clusterctl.observe.why.known_messages import WITHOUT_CUDA, of_format, of_java, of_known, of_status
from clusterctl.observe.why.tracebacks import RaisedException, TracebackFrame

CLASS_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
GENERIC_NOUNS = {"error", "exception", "failure", "warning"}
#: Anchored at a blank, or it would take quadratic time.
LIBRARY = re.compile(r"(?<!\S)(\S+\.so(?:\.\d+)*): cannot open shared object")
LOADER = re.compile(r"undefined symbol: (\S+)|version [`'](\S+?)' not found")
NO_MEMORY = re.compile(r"out of memory|bad_alloc|can(?:no|')t allocate", re.IGNORECASE)
NOT_FINITE = re.compile(r"\bnan\b|\binf(?:inity)?\b|\b(?:not|non)[- ]?finite\b", re.IGNORECASE)
#: Classes that report a mistake in the program or its data, whatever words are in their messages.
OF_PROGRAM = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
#: Classes that no reader of a format raises for a damaged file.
NOT_OF_FILES = (
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    SyntaxError,
    TypeError,
    UnicodeError,
)
INCOMPATIBLE = "its libraries are incompatible: clusterctl setup creates the same environment on every node"
NEWER = "it was built on a newer system than that of {node}: build it there, or run the job in a container image"
LAST_ERROR = "Last error:"  # in messages of NCCL, before the reason
SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\]")  # as an OSError writes itself, also as the text of another exception
NETWORK = {"connection", "connect", "timeout", "unreachable", "unavailable", "network", "socket", "peer"}
HOST = re.compile(r"\b(?:[Ff]ailed to resolve |host=)'([^'\n]+)'")  # as urllib3 names it
FIX = "fix {}, or the data it was reading there"
FIX_UNKNOWN = "fix the program's call of that library, or the data that it gives it"
#: What multiprocessing, concurrent.futures and torch report of a process whose end they cannot explain.
ENDED_CHILD = re.compile(r"\bterminated abruptly\b|\bDataLoader worker .{0,200} exited unexpectedly\b")
LOST_CHILD = "see the output of that process, and dmesg on {node}: the kernel kills processes if memory runs out"
STARTS_PROGRAMS = "/subprocess.py"
STARTS_PROCESSES = ("/multiprocessing/", "/concurrent/futures/process.py", "/torch/multiprocessing/")
LOCKS = re.compile(r"\b(?:flock|lockf|fcntl|[Ll]ock)\b")
MAIN_GUARD = 'put the work of the program under `if __name__ == "__main__":`, so that its processes can import it'
CHANGED_KEY = "compare the key with the owner of the host, then correct known_hosts of the account on {node}"
#: Nouns in class names that say what happened, whatever the message.
NOUNS: Mapping[str, tuple[str, str]] = {
    "ResourceExhausted": ("out_of_memory", MEMORY),
    "DataLoss": ("wrong_file", "bring the file again: it is damaged or cut off"),
    "DeadlineExceeded": ("peer_silent", LOOK_AT_PEER),
    "MainGuard": ("exception", MAIN_GUARD),
    "BadHostKey": ("host_key", CHANGED_KEY),
    "HostKeyNotVerifiable": ("host_key", CHANGED_KEY),
}
OWN_MODULE = re.compile(
    r"cannot import name '([^'\n]+)' from (?:partially initialized module )?'([^'\n]+)' \(([^)\n]+)\)"
)
NO_PACKAGE = re.compile(r"No module named '([^'\n]+)'; '([^'\n]+)' is not a package")
HAS_NOT_THE_NAME = (
    "{file} is a file of the job: add {name} to it or import another name; if only some nodes fail, compare the file "
    "(clusterctl exec --in-job {{job}} -- sha256sum {file}) and dispatch the job again"
)


def of_chain(chain: Sequence[RaisedException]) -> Diagnosis:
    """The diagnosis of a chain of exceptions: the first informative one of those that are about the same failure."""
    first = len(chain) - 1
    while first > 0 and chain[first].restates(chain[first - 1]):
        first -= 1
    diagnoses = [of_exception(one) for one in chain[first:]]
    root = next((one for one in diagnoses if one.kind != "exception"), diagnoses[0])
    if root.kind == "name_not_found":
        root = _with_host(root, chain)
    own = next((one.where for one in chain[first:] if one.has_own), None)
    if root.kind == "exception" and own and root.advice not in (MAIN_GUARD, LOST_CHILD):
        root = replace(root, advice=FIX.format(own))
    own = own or root.where
    if root.kind != "exception" or root.error == diagnoses[-1].error:
        return replace(root, where=own)
    return replace(root, where=own, words=f"{root.words}, which led to {diagnoses[-1].error}")


def _with_host(diagnosis: Diagnosis, chain: Sequence[RaisedException]) -> Diagnosis:
    """Name the host that could not be resolved: only the exceptions that follow the system's own do."""
    host = next((match[1] for one in chain if (match := HOST.search(one.message))), None)
    return replace(diagnosis, words=unresolved(host).words, subject=host) if host else diagnosis


def _with_reason(one: RaisedException) -> RaisedException:
    """The exception with the line of its message that has the reason as the first one."""
    if not one.message and one.rest:
        one = replace(one, message=one.rest[0], rest=one.rest[1:])
    if LAST_ERROR in one.rest[:-1]:
        return replace(one, message=one.rest[one.rest.index(LAST_ERROR) + 1], rest=())
    return one


def of_exception(one: RaisedException) -> Diagnosis:
    """The diagnosis of one exception, by its base class, the noun in its name, or the system error in its message."""
    one = _with_reason(one)
    short = one.name.rpartition(".")[2]
    error = f"{short}: {one.message}" if one.message else short
    words = error if one.message or not one.where else f"{short} at {one.where}"
    fix = FIX.format(one.where or "the program") if not one.frames or one.has_own else FIX_UNKNOWN
    fix = LOST_CHILD if ENDED_CHILD.search(one.message) else fix
    plain = Diagnosis("exception", words, fix, error, one.where)
    named = [word.lower() for word in CLASS_WORDS.findall(short)]
    noun = next((word for word in reversed(named) if word not in GENERIC_NOUNS), "")
    kind = getattr(builtins, short, None)
    kind = kind if isinstance(kind, type) and issubclass(kind, BaseException) else Exception
    said = unquoted(one.message)
    speaks = not issubclass(kind, OF_PROGRAM) or SYSTEM_ERROR.search(said) or said == WITHOUT_CUDA
    listed = one.name == "shutil.Error"  # its message is a list of others
    by_system = of_errno(one.message.replace('"', "") if listed else one.message) if speaks else None
    whole = " ".join((one.message, *one.rest))
    known = (None if one.frames else of_java(short, one.message)) or (of_known(said) if speaks else None)
    known = known or (of_status(whole) if speaks else None) or of_child(one, kind)
    if known is None and not issubclass(kind, NOT_OF_FILES):
        known = of_format(one.message) or (of_known(whole) if speaks and noun == "exhausted" else None)
    found = next(iter(NOUNS[name] for name in NOUNS if short.startswith(name)), None)
    if known is not None:
        diagnosis = replace(known, error=error, where=one.where)
    elif found is not None:
        diagnosis = replace(plain, kind=found[0], advice=found[1], about_peer=found[0].startswith("peer_"))
    elif issubclass(kind, MemoryError) or noun == "memory" or (speaks and NO_MEMORY.search(said)):
        diagnosis = replace(plain, kind="out_of_memory", words="out of memory", advice=MEMORY)
    elif issubclass(kind, ImportError) or LIBRARY.search(said) or (speaks and LOADER.search(one.message)):
        diagnosis = of_import(plain, one.message)
    elif issubclass(kind, SyntaxError):
        too_old = ", unless the Python on {node} is too old for it (PYTHON)" if one.frames else ""
        diagnosis = replace(
            plain,
            kind="syntax_error",
            words=f"syntax error: {one.message}",
            advice=f"fix {one.where or 'the program'}{too_old}",
        )
    elif by_system is not None:
        diagnosis = replace(_of_program(one, by_system), error=error, where=one.where)
    elif issubclass(kind, ConnectionError | TimeoutError) or noun in NETWORK:
        diagnosis = replace(plain, kind="peer_silent", advice=LOOK_AT_PEER, about_peer=True)
    elif _is_of_numbers(kind, noun, one.message):
        diagnosis = replace(plain, kind="not_finite", advice=NUMBERS)
    elif issubclass(kind, KeyboardInterrupt):
        diagnosis = replace(plain, kind="signal", words="sent from outside the job", advice=OUTSIDE)
    else:
        diagnosis = (_of_rest(one, plain) if speaks and not short.endswith("Group") else None) or plain
    return diagnosis


def of_child(one: RaisedException, kind: type[BaseException]) -> Diagnosis | None:
    """The diagnosis of a lost connection to a process that the program itself started, or of a file that is locked."""
    inner = one.frames[-1] if one.frames else TracebackFrame("", "")
    if issubclass(kind, ConnectionError | EOFError) and any(part in inner.file for part in STARTS_PROCESSES):
        words = "a process that the program had started ended, and with it the connection to it"
        return Diagnosis("exit", words, "see its last lines, and dmesg on {node}, for why that process ended")
    if issubclass(kind, BlockingIOError) and any(LOCKS.search(frame.source) for frame in one.frames):
        return locked(None)
    return None


def _of_rest(one: RaisedException, plain: Diagnosis) -> Diagnosis | None:
    """The diagnosis of an exception by the further lines of its message, if they report a system error."""
    errors = [error for line in one.rest if (error := of_known(line) or of_errno(line)) is not None]
    return replace(errors[-1], error=plain.error, where=plain.where) if errors else None


def _is_of_numbers(kind: type[BaseException], noun: str, message: str) -> bool:
    """Return True if an exception is about NaN or infinity. Quoted text is ignored: it names something."""
    numbers = issubclass(kind, FloatingPointError) or noun in ("finite", "nan")
    return numbers or NOT_FINITE.search(unquoted(message)) is not None


def _of_program(one: RaisedException, diagnosis: Diagnosis) -> Diagnosis:
    """Blame the program if starting it failed because a file without a directory was missing."""
    starts = bool(one.frames) and one.frames[-1].file.endswith(STARTS_PROGRAMS)
    if not starts or diagnosis.errno != "ENOENT" or "/" in (diagnosis.subject or "/"):
        return diagnosis
    words = f"the command {diagnosis.subject} was not found"
    return replace(SHELL_CODES[127], words=words, errno=diagnosis.errno, subject=diagnosis.subject)


def of_import(plain: Diagnosis, message: str) -> Diagnosis:
    """The diagnosis of a missing or incompatible module or library."""
    library, symbol, module = LIBRARY.search(message), LOADER.search(message), QUOTED.search(message)
    if library:
        words = f"the library {library[1]} is missing"
        return replace(plain, kind="missing_library", words=words, advice=LIBRARY_PATH, subject=library[1])
    if symbol:
        advice = NEWER if (symbol[2] or "").startswith("GLIBC") else INCOMPATIBLE
        words = f"a library has the wrong version: it lacks {symbol[1] or symbol[2]}"
        return replace(plain, kind="wrong_library", words=words, advice=advice, subject=symbol[1] or symbol[2])
    if "relative import" in message:
        advice = "run the file as a module: python -m package.module"
        return replace(plain, kind="import_error", words=f"import error: {message}", advice=advice)
    own = _of_own_module(plain, message)
    if own is not None:
        return own
    name = module[1] if module else None
    advice = "clusterctl setup creates the same environment on every node from the workspace's requirements.txt"
    if message.startswith("No module named"):
        advice += f"; if {name} is a file of the job, add its directory to PYTHONPATH in ENV"
    if name and name.partition(".")[0] in sys.stdlib_module_names:
        advice = f"{name} is in Python's standard library: {{node}} has another Python, or an incomplete one (PYTHON)"
    return replace(plain, kind="import_error", words=f"import error: {message}", advice=advice, subject=name)


def _of_own_module(plain: Diagnosis, message: str) -> Diagnosis | None:
    """The diagnosis of an import from a file of the job itself: no package is missing."""
    name, package = OWN_MODULE.search(message), NO_PACKAGE.search(message)
    if name and (TracebackFrame(name[3], "").is_own or name[3] == "unknown location"):
        file = name[3].rpartition("/")[2] if name[3] != "unknown location" else name[2]
        circular = "circular import" in message
        advice = HAS_NOT_THE_NAME.format(file=file, name=name[1])
        advice = "two modules of the job import each other: move one import into a function" if circular else advice
        words = f"{name[2]} has no {name[1]}" + (", as they import each other" if circular else "")
        return replace(plain, kind="import_error", words=words, advice=advice, subject=name[2])
    if package:
        words = f"{package[2]} is a file, not a package with {package[1].rpartition('.')[2]}"
        advice = f"rename the {package[2]}.py of the job if it hides a package of that name"
        return replace(plain, kind="import_error", words=words, advice=advice, subject=package[1])
    return None
