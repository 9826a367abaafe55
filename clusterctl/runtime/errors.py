"""The error tree of the runtime. Messages name the table, rank and step, and end with the remedy.

| class               | when                                                                     |
|---------------------|--------------------------------------------------------------------------|
| `UseError`          | the training program misuses the runtime (shape, dtype, ids, order)      |
| `TableError`        | trainers disagree about a table, or a table is unknown                   |
| `WireError`         | a message is malformed                                                   |
| `ForgottenError`    | a pserver no longer has a list of ids: the trainer sends it again        |
| `RefusedError`      | a pserver refuses: wrong rank for the key, old epoch or attempt, too early |
| `UnreachableError`  | a pserver has not answered for well over the node's grace                |
| `ModelError`        | a model file is damaged, incomplete or of another shape                  |
| `NotFiniteError`    | a loss or gradient is not finite, and ON_NAN is "fail"                   |
| `ProcessError`      | the process environment or the control socket is wrong                   |
| `MainGuardError`    | a child process imported the main program again, and called `connect()`  |
"""

from __future__ import annotations


class RuntimeFailure(Exception):  # noqa: N818 - the base class; the classes that are raised are named ...Error
    """Base of every error that the runtime raises on purpose. `str(error)` ends with the remedy."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)


class UseError(RuntimeFailure):
    pass


class TableError(RuntimeFailure):
    pass


class WireError(RuntimeFailure):
    pass


class ForgottenError(RuntimeFailure):
    pass


class RefusedError(RuntimeFailure):
    pass


class UnreachableError(RuntimeFailure):
    pass


class ModelError(RuntimeFailure):
    pass


class NotFiniteError(RuntimeFailure):
    pass


class ProcessError(RuntimeFailure):
    pass


class MainGuardError(ProcessError):
    pass


#: The errors that an error reply may carry, by class name.
BY_NAME: dict[str, type[RuntimeFailure]] = {
    cls.__name__: cls for cls in (UseError, TableError, WireError, ForgottenError, RefusedError, ModelError)
}
