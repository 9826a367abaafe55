"""What Python's exceptions mean: by their place among Python's own, the nouns of their names, the system's words."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

from clusterctl.observe.why.errno_and_signals import (
    LOOK_AT_PEER,
    MEMORY,
    NUMBERS,
    OUTSIDE,
    QUOTED,
    SHELL_CODES,
    Diagnosis,
    of_errno,
)
from clusterctl.observe.why.tracebacks import Raised

CLASS_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
SAID_OF_ALL = {"error", "exception", "failure", "warning"}
#: From a blank on: else its time would be quadratic.
LIBRARY = re.compile(r"(?<!\S)(\S+\.so(?:\.\d+)*): cannot open shared object")
LOADER = re.compile(r"undefined symbol: (\S+)|version [`'](\S+?)' not found")
NO_MEMORY = re.compile(r"out of memory|bad_alloc|can(?:no|')t allocate", re.IGNORECASE)
NOT_FINITE = re.compile(r"\bnan\b|\binf(?:inity)?\b|\b(?:not|non)[- ]?finite\b", re.IGNORECASE)
NETWORK = {"connection", "connect", "timeout", "unreachable", "unavailable", "network", "socket", "peer"}
STARTS_PROGRAMS = "/subprocess.py"


def of_chain(chain: Sequence[Raised]) -> Diagnosis:
    """Of exceptions that led to each other: the first one that tells something, of those that are about one thing."""
    first = len(chain) - 1
    while first > 0 and chain[first].tells_of(chain[first - 1]):
        first -= 1
    found = [of_exception(one) for one in chain[first:]]
    root = next((one for one in found if one.kind != "exception"), found[0])
    own = next((one.where for one in chain[first:] if any(frame.is_own for frame in one.frames)), root.where)
    if root.kind != "exception" or root.error == found[-1].error:
        return replace(root, where=own)
    return replace(root, where=own, words=f"{root.words}; and so {found[-1].error}")


def of_exception(one: Raised) -> Diagnosis:
    """By its place among Python's own exceptions, by the noun of its name, by what the system says in its message."""
    short = one.name.rpartition(".")[2]
    error = f"{short}: {one.message}" if one.message else short
    words = error if one.message or not one.where else f"{short} at {one.where}"
    mend = f"mend {one.where}, or the data that it met there" if one.where else "mend the program, or its data"
    plain = Diagnosis("exception", words, mend, error, one.where)
    named = [word.lower() for word in CLASS_WORDS.findall(short)]
    noun = next((word for word in reversed(named) if word not in SAID_OF_ALL), "")
    kind = getattr(builtins, short, None)
    kind = kind if isinstance(kind, type) and issubclass(kind, BaseException) else Exception
    by_system = of_errno(one.message)
    if issubclass(kind, MemoryError) or noun == "memory" or NO_MEMORY.search(one.message):
        found = replace(plain, kind="out_of_memory", words="out of memory", advice=MEMORY)
    elif issubclass(kind, ImportError) or LIBRARY.search(one.message):
        found = of_import(plain, one.message)
    elif issubclass(kind, SyntaxError):
        advice = f"mend {one.where}, unless the Python of {{node}} is too old for it (PYTHON)"
        found = replace(plain, kind="syntax_error", words=f"syntax error: {one.message}", advice=advice)
    elif by_system is not None:
        found = replace(_of_program(one, by_system), error=error, where=one.where)
    elif issubclass(kind, ConnectionError | TimeoutError) or noun in NETWORK:
        found = replace(plain, kind="peer_silent", advice=LOOK_AT_PEER, about_peer=True)
    elif _is_of_numbers(kind, noun, one.message):
        found = replace(plain, kind="not_finite", advice=NUMBERS)
    elif issubclass(kind, KeyboardInterrupt):
        found = replace(plain, kind="signal", words="from outside", advice=OUTSIDE)
    else:
        found = plain
    return found


def _is_of_numbers(kind: type[BaseException], noun: str, message: str) -> bool:
    """What is quoted is the name of something."""
    numbers = issubclass(kind, FloatingPointError) or noun in ("finite", "nan")
    return numbers or NOT_FINITE.search(QUOTED.sub("", message)) is not None


def _of_program(one: Raised, said: Diagnosis) -> Diagnosis:
    """A file that is missing where a program is to be started, and named without a directory, is that program."""
    starts = bool(one.frames) and one.frames[-1].file.endswith(STARTS_PROGRAMS)
    if not starts or said.errno != "ENOENT" or "/" in (said.subject or "/"):
        return said
    missing = SHELL_CODES[127]
    return replace(missing, words=f"the command {said.subject} was not found", errno=said.errno, subject=said.subject)


def of_import(plain: Diagnosis, message: str) -> Diagnosis:
    """A module or a library that is missing, or does not fit."""
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
