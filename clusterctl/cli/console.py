"""Output of commands: JSON documents go to stdout; text for people goes to stdout too, or to stderr with `--json`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TextIO

from clusterctl.cli import style
from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.hints import hints_with_conf, message_with_conf, with_conf
from clusterctl.errors import ClusterctlError, ErrorDocument, InterruptedRun
from clusterctl.escape import clean, finite

SCHEMA = "clusterctl/1"


class Console:
    """All output of one command. The only place that handles `--json` and `--quiet`.

    Commands in our own text get the `--conf` of this call, so that they work when pasted; `reads_conf` is False for
    a command that ignores it. Text of programs and nodes goes to `output`, which changes no words of it.
    """

    def __init__(self, options: GlobalOptions, *, reads_conf: bool = True) -> None:
        self._conf = options.conf if reads_conf else None
        self.json = options.json
        self.quiet = options.quiet
        self.verbose = options.verbose
        self.streaming = False
        #: Entered around all that is printed, so that it appears above a line that redraws itself.
        self.above_progress: Callable[[], AbstractContextManager[None]] = nullcontext
        #: Returns the error to report instead of one that ends the command.
        self.explain: Callable[[ClusterctlError], ClusterctlError] = lambda error: error
        #: Gets every document, with and without `--json`.
        self.on_document: Callable[[Mapping[str, Any]], None] = lambda value: None

    @property
    def people(self) -> TextIO:
        return sys.stderr if self.json else sys.stdout

    @property
    def live(self) -> bool:
        """True if a display that redraws itself can be shown."""
        return not (self.json or self.quiet) and _is_terminal(sys.stdout) and style.is_capable(os.environ)

    def rendered(self, text: str, stream: TextIO, *, keep_newlines: bool) -> str:
        """Return text for a stream, cleaned and in its colours."""
        colour = isinstance(text, style.Styled) and self.has_colour(stream)
        return style.render(text, colour=colour, keep_newlines=keep_newlines)

    def has_colour(self, stream: TextIO) -> bool:
        """Return True if text on standard output or standard error is to have colours."""
        return not (self.json or self.quiet) and style.wants_colour(os.environ, is_terminal=_is_terminal(stream))

    def _print(self, text: str, stream: TextIO, *, keep_newlines: bool = True) -> None:
        with self.above_progress():
            print(self.rendered(text, stream, keep_newlines=keep_newlines), file=stream, flush=True)

    def draw(self, control: str, text: str = "") -> None:
        """Write an escape sequence and one line of text, without its end, to a terminal that is `live`."""
        print(control + self.rendered(text, self.people, keep_newlines=False), end="", file=self.people, flush=True)

    def say(self, text: str = "") -> None:
        """Print text of ours for people, unless `--quiet`. Escape sequences from nodes or files are made harmless."""
        self.output(self.pasteable(text))

    def pasteable(self, text: str) -> str:
        """Return text of ours in which commands have the `--conf` of this call."""
        return style.changed(text, lambda piece: with_conf(piece, self._conf))

    def output(self, text: str) -> None:
        """Print text of a program or a node, unless `--quiet`, with its escape sequences made harmless."""
        if not self.quiet:
            self._print(text, self.people)

    def clear(self) -> None:
        """Clear the screen if there is one."""
        if self.live:
            print("\x1b[H\x1b[2J", end="", file=self.people)

    def warn(self, text: str) -> None:
        """Print a warning for people even with `--quiet`. Escape sequences are made harmless."""
        text = self.pasteable(text)
        self._complain(text if isinstance(text, style.Styled) else style.warning(text))

    def interject(self, text: str) -> None:
        """Print a warning in a handler of a signal, which may have come in the middle of a `print`."""
        line = self.rendered(style.warning(text), sys.stderr, keep_newlines=True)
        with contextlib.suppress(OSError, ValueError):
            os.write(sys.stderr.fileno(), f"{line}\n".encode(errors="replace"))

    def note(self, text: str) -> None:
        """Print a line about progress where it is not mistaken for output, unless `--quiet` or `--json`."""
        if not (self.quiet or self.json):
            self._complain(text)

    def _complain(self, text: str) -> None:
        self._print(text, sys.stderr)

    def document(self, value: Mapping[str, Any]) -> None:
        """Print the JSON document of a command; nothing without `--json`."""
        self.on_document(value)
        if self.json:
            document = finite(hints_with_conf({"schema": SCHEMA, **value}, self._conf))
            text = json.dumps(document, indent=None if self.streaming else 1)  # printable ASCII, except DEL
            print(text.replace("\x7f", "\\u007f"), flush=True)

    def stream(self) -> None:
        """Switch `--json` to one line per event and a final line with the outcome."""
        self.streaming = True

    def record(self, value: Mapping[str, Any]) -> None:
        """Print one line of a JSON stream; nothing outside a stream."""
        if self.streaming:
            self.document(value)

    def error(self, error: ClusterctlError) -> int:
        """Print an error with its hint, as a JSON document and as text. Return the exit code."""
        if not isinstance(error, ReportedError):
            error = self.explain(error)
            self.document({"error": self._describe(error)})
        if self.verbose:
            self.traceback(error)
        message = style.changed(str(error), lambda text: message_with_conf(error, text, self._conf))
        self._complain(_as_failure(message, error))
        if error.hint:
            self._complain(self.pasteable(f"  {clean(error.hint)}"))
        return exit_code(error)

    def traceback(self, error: BaseException) -> None:
        """Print the traceback of an error, for debugging the program."""
        self._complain("".join(traceback.format_exception(error)).rstrip("\n"))

    def finish(self, value: Mapping[str, Any], error: ClusterctlError | None) -> None:
        """Print the document of a command that may have partly failed, error included, then raise that error."""
        error = error and self.explain(error)
        described = {"error": self._describe(error)} if error is not None else {}
        self.document({**value, **described})
        if error is not None:
            raise ReportedError(error)

    def _describe(self, error: ClusterctlError) -> ErrorDocument:
        described: ErrorDocument = {**error.to_json(), "message": message_with_conf(error, error.message, self._conf)}
        if error.details:
            described["details"] = error.details
        return described

    def table(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[str]],
        numeric: Sequence[str] = (),
        dropped_first: Sequence[str] = (),
    ) -> None:
        """Print aligned columns, `numeric` ones to the right; a narrow terminal loses the `dropped_first` columns."""
        if not self.quiet:
            table = list(rows)
            for line in fitting(headings, table, numeric, dropped_first if self.people.isatty() else ()):
                self._print(line, self.people, keep_newlines=False)


class ReportedError(ClusterctlError):
    """An error that the JSON document of its command already contains."""

    def __init__(self, error: ClusterctlError) -> None:
        super().__init__(error.message, node=error.node, hint=error.hint, details=error.details)
        self.code = error.exit_code
        self.original = error


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _as_failure(message: str, error: ClusterctlError) -> str:
    """Return the message of an error in red, except its indented lines. An interruption is not a failure."""
    if isinstance(message, style.Styled) or exit_code(error) == InterruptedRun.exit_code:
        return message
    return style.join("\n", (line if line.startswith(" ") else style.bad(line) for line in message.split("\n")))


def exit_code(error: ClusterctlError) -> int:
    return error.code if isinstance(error, ReportedError) else error.exit_code


def align(headings: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[str] = ()) -> list[str]:
    body = [list(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(headings, *body, strict=True)]
    right = [heading in numeric for heading in headings]
    return [
        style.join(
            "  ",
            (
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(row, widths, right, strict=True)
            ),
        ).rstrip()
        for row in ([list(headings)] if any(headings) else []) + body
    ]


def fitting(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[str],
    dropped_first: Sequence[str],
    width: int | None = None,
) -> list[str]:
    """Align a table, dropping columns in the order of `dropped_first` until it fits the `width` of the terminal."""
    width = width or shutil.get_terminal_size().columns
    lines = align(headings, rows, numeric)
    for name in dropped_first:
        if max(len(line) for line in lines) <= width:
            break
        kept = [i for i, heading in enumerate(headings) if heading != name]
        headings, rows = [headings[i] for i in kept], [[row[i] for i in kept] for row in rows]
        lines = align(headings, rows, numeric)
    return lines


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def human_bytes(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def human_count(count: float | None) -> str:
    """Format a count like `1,204` or `41.2k`."""
    if count is None:
        return "-"
    return f"{count / 1000:.1f}k" if count >= 10000 else f"{count:,.0f}"


def human_time(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def human_duration(seconds: float) -> str:
    """Format a duration as `30 s`, `2 min 5 s` or `1 h 3 min`."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"
