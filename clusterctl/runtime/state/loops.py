"""The loops of a program over passes, and how a program that is started again goes through them.

A loop whose passes count already is empty. The program's code between such loops runs again; what it does to the state
of the trainer is overwritten when that state is loaded. Code that decides how many loops there are must not run again:
`ps.epochs` yields only epochs that are not done.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Callable

from clusterctl.runtime.errors import UseError

_USE_EPOCHS = "use `for epoch in ps.epochs(n)`, which yields only epochs that are not done"
#: The lines from which a loop is called, innermost first.
Site = tuple[tuple[str, int], ...]


class Loops:
    """The loops since the start of this process, and what an earlier attempt recorded of its own.

    `counted` passes need not be trained again. `is_before_state(pass_)` returns True if the state to load is that of a
    loop which begins with this pass or a later one. `first_pass` is the first one of the next loop, unless a loop is
    open. Passes are numbered through the run.
    """

    def __init__(self, counted: int, known: Any, is_before_state: Callable[[int], bool]) -> None:
        known = known if isinstance(known, dict) else {}
        self.first_pass = 0
        self.open_pass: int | None = None
        self.has_continued = False
        self._counted = counted
        self._is_before_state = is_before_state
        self._skipped = 0
        self._known_starts: list[int] | None = known.get("starts")
        self._known_epochs: list[list[int | None]] = known.get("epochs", [])
        self._ended: dict[int, int] = dict(known.get("ended", []))
        self._starts: list[int] = list(self._known_starts or [])
        self._epochs: list[list[int | None]] = []
        self._site: Site = ()
        self._last: tuple[int, int | None] = (0, 0)

    def record(self) -> dict[str, Any]:
        """Return as JSON what the next attempt needs.

        `starts` are the passes at which the program came to another loop. `ended` has the first pass of each loop that
        ended early, and the pass after its last one; `epochs` the same for each call of `ps.epochs`.
        """
        return {"starts": self._starts, "ended": [*self._ended.items()], "epochs": self._epochs}

    @property
    def next_pass(self) -> int:
        """The pass after all that the program's loops have begun."""
        return self.first_pass if self.open_pass is None else self.open_pass + 1

    @property
    def is_replaying(self) -> bool:
        """True from an empty loop to the first one that continues."""
        return self._skipped > 0 and not self.has_continued

    def end_of(self, passes: int | None) -> int | None:
        """Return the pass after a loop that begins now, None if it is not known."""
        return None if passes is None else self.next_pass + passes

    def begin(self, site: Site, passes: int | None) -> bool:
        """Begin a loop that is called at `site`; return True if it is empty, since its passes count already.

        Raises UseError if an earlier attempt trained them in another loop.
        """
        first, after = self.next_pass, self.end_of(passes)
        began, planned = self._last
        if first != planned and first > began:
            self._ended[began] = first
        is_other = site != self._site
        self._site = site
        early = None if self.has_continued else self._ended.get(first)
        if early is not None and (self._counted >= early or self._is_before_state(early)):
            after = early
        elif after is None or self.has_continued or self._counted < after:
            self._last = (first, after)
            if is_other and first not in self._starts:
                self._starts.append(first)
            self.has_continued = True
            return False
        if passes != 0:
            self._skipped += 1
            self._check(first, is_other=is_other)
        self._last, self.first_pass = (first, after), after
        return True

    def _check(self, first: int, *, is_other: bool) -> None:
        if self._known_starts is not None and is_other != (first in self._known_starts):
            raise UseError(
                f"pass {first} counts already, and an earlier attempt of the program trained it in another loop: "
                "`break` may have ended an empty epoch, or did not end this one",
                remedy=_USE_EPOCHS,
            )

    def epochs(self, number: int, passes: int) -> Iterator[int]:
        """Yield the numbers of those of `number` epochs, each of so many passes, that are not done."""
        base, serial = self.next_pass, len(self._epochs)
        known = self._known_epochs[serial] if serial < len(self._known_epochs) else [base, None]
        self._epochs.append([base, None])
        if not self.has_continued and known[0] != base:
            raise UseError(f"ps.epochs began with pass {base}, and with pass {known[0]} before", remedy=_USE_EPOCHS)
        ended = None if self.has_continued else known[1]
        try:
            if ended is not None and self._is_done(ended):
                self._skip_to(ended)
                return
            for epoch in range(number):
                after = base + passes * (epoch + 1)
                if self._is_done(after):
                    self._skip_to(after)
                    continue
                yield epoch
                if self.next_pass != after:
                    raise UseError(
                        f"epoch {epoch} had {self.next_pass - after + passes} passes, not {passes}",
                        remedy="write ps.epochs(n, passes=p) for p passes in each epoch",
                    )
        finally:
            self._epochs[serial][1] = self.next_pass

    def _is_done(self, after: int) -> bool:
        return not self.has_continued and (self._counted >= after or self._is_before_state(after))

    def _skip_to(self, pass_: int) -> None:
        self.first_pass = pass_
        self._last = (pass_, pass_)

    def check_end(self, *, waits: bool) -> None:
        """Raise UseError if the program ends in an empty epoch. It `waits` if its state was not loaded yet."""
        if self.is_replaying or waits:
            raise UseError(
                "the program ended in an empty epoch, perhaps by `break`: it has passes that count already, and did "
                "not come to the first one that does not",
                remedy=_USE_EPOCHS,
            )


def site() -> Site:
    """Return the lines of the program from which the caller's caller is called."""
    frame, lines = inspect.currentframe(), []
    while frame is not None:
        lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines[2:])


class Batches:
    """The batches of a loop, as an iterator. Iterating it again begins another loop with as many passes.

    `begin(site)` returns the generator of one loop.
    """

    def __init__(self, begin: Callable[[Site], Iterator[Any]]) -> None:
        self._begin = begin
        self._own: Any = None  # of `next`
        self._newest: Any = None

    def __iter__(self) -> Iterator[Any]:
        if self._own is not None:
            return self._own  # type: ignore[no-any-return]
        self._newest = None  # ends the loop before, unless it goes on
        self._newest = self._begin(site())
        return self._newest  # type: ignore[no-any-return]

    def __next__(self) -> Any:
        if self._own is None:
            self._own = self._newest = self._begin(site())
        try:
            return next(self._own)
        except StopIteration:
            self._own = None
            raise

    def close(self) -> None:
        """End the loop as `break` does."""
        if self._newest is not None:
            self._newest.close()
        self._own = None
