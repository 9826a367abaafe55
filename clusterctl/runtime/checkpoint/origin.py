"""Compare by name the tables of a checkpoint or a model with those that a program declares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from clusterctl.common.errors import first_of
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import ModelError, UseError

SOON = 100  # pushes after which undeclared tables are reported, if no pass has ended
MOST_NAMED = 5


class SavedTables(NamedTuple):
    """The names of the tables in what the pservers start from: a `checkpoint`, or else a model."""

    checkpoint: bool
    names: list[str]


class Origin:
    """Compares the `saved` tables with those that are `declared()` so far, by name.

    `warn(kind, message)` is called for declared tables that the origin lacks, and once for those that it has and nobody
    declares. `ignored` are names, or patterns as of `fnmatch`, of tables for which that is meant.
    """

    def __init__(
        self,
        label: str,
        saved: Collection[str],
        declared: Callable[[], set[str]],
        ignored: Sequence[str],
        remedy: str,
        warn: Callable[[str, str], None] | None,
    ) -> None:
        self._label = label
        self._saved = set(saved)
        self._declared = declared
        self._ignored = ignored
        self._remedy = remedy
        self._warn = warn or (lambda kind, message: None)
        self._pushes = 0
        self._compared: set[str] = set()
        self._is_reported = False

    def before_push(self) -> None:
        """Look at the tables before a push. Raises ModelError if none of those declared by then is saved."""
        if not self._saved or self._pushes > SOON:
            return
        self._pushes += 1
        if not self._compared:
            self._compare()
        if self._pushes > SOON:
            self.report()

    def report(self) -> None:
        """At the end of a pass or of the run: compare the tables declared since, and once those that nobody declared.

        Raises ModelError if none of those declared is saved.
        """
        if not self._saved:
            return
        self._compare()
        if self._is_reported or not self._compared:
            return
        self._is_reported = True
        if unused := self._meant(self._saved - self._compared):
            they = "it" if len(unused) == 1 else "them"
            message = f"{self._label} has {_tables(unused)}, not declared so far: later saves lack {they}"
            hint = f"connect(ignore=({unused[0]!r},{' ...' if len(unused) > 1 else ''})) if that is meant"
            self._warn("tables_not_declared", f"{message}; {hint}")

    def _compare(self) -> None:
        declared = self._declared()
        if not self._compared and declared and self._meant(self._saved) and not declared & self._saved:
            raise ModelError(
                f"{self._label} has none of the declared tables: it has {_tables(sorted(self._saved))}; "
                f"the program declares {_tables(sorted(declared))}",
                remedy=f"declare tables by the names with which they were saved, {self._remedy}, "
                'or call connect(ignore=("*",)) if that is meant',
            )
        lacking, self._compared = self._meant(declared - self._compared - self._saved), declared
        if lacking:
            starts = "it starts" if len(lacking) == 1 else "they start"
            message = f"{self._label} lacks {_tables(lacking)}, declared by the program: {starts} from initial values"
            self._warn("tables_not_loaded", message)

    def _meant(self, names: Collection[str]) -> list[str]:
        """Return the names that are not ignored, in order."""
        return sorted(name for name in names if not any(name == of or fnmatchcase(name, of) for of in self._ignored))


def origin_of(
    env: Environment,
    saved: SavedTables | None,
    load: str | None,
    ignore: Sequence[str],
    declared: Callable[[], set[str]],
    warn: Callable[[str, str], None] | None,
) -> Origin:
    """Return what a run starts from, without tables if that is nothing, or a checkpoint of its own.

    Raises UseError for an `ignore` that is not a tuple or list of names.
    """
    if isinstance(ignore, str) or not all(isinstance(name, str) and name for name in ignore):
        raise UseError(f"connect(ignore={ignore!r:.80})", remedy="pass a tuple of names of tables, such as ('old',)")
    resume, recover = env.spec.saving.resume, env.spec.recover
    label, remedy, names = f"the model {load}", "load a model of this program", saved.names if saved else ()
    if saved is not None and saved.checkpoint:
        if resume is None or (recover is not None and recover.tag != resume.tag):
            names = ()
        else:
            run = f"job {resume.job}, run {int(resume.run)}" if resume.job else f"run {int(resume.run)}"
            label = f"the checkpoint {resume.tag} of {run}"
            remedy = "start without --resume to train from the beginning"
    return Origin(label, names, declared, tuple(ignore), remedy, warn)


def _tables(names: Sequence[str]) -> str:
    return f"{'table' if len(names) == 1 else 'tables'} {first_of(names, MOST_NAMED)}"
