"""Output of commands: JSON documents go to stdout; text for people goes to stdout too, or to stderr with `--json`."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.hints import hints_with_conf, message_with_conf, with_conf
from clusterctl.errors import ClusterctlError

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

SCHEMA = "clusterctl/1"
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # text direction
#: Characters without a width, line separators, and tags. Joiners stay: scripts and emoji need them.
INVISIBLE = "\xad\u180e\u200b\u2028\u2029\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
HARMFUL = re.compile(f"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff{BIDI}{INVISIBLE}]")


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
        #: Returns the error to report instead of one that ends the command.
        self.explain: Callable[[ClusterctlError], ClusterctlError] = lambda error: error

    @property
    def people(self) -> TextIO:
        return sys.stderr if self.json else sys.stdout

    @property
    def live(self) -> bool:
        """True if a display that redraws itself can be shown."""
        return not (self.json or self.quiet or "NO_COLOR" in os.environ) and sys.stdout.isatty()

    def rich(self) -> RichConsole:
        from rich.console import Console as RichConsole

        return RichConsole(file=self.people, highlight=False, emoji=False, markup=False)

    def say(self, text: str = "") -> None:
        """Print text of ours for people, unless `--quiet`. Escape sequences from nodes or files are made harmless."""
        self.output(self.pasteable(text))

    def pasteable(self, text: str) -> str:
        """Return text of ours in which commands have the `--conf` of this call."""
        return with_conf(text, self._conf)

    def output(self, text: str) -> None:
        """Print text of a program or a node, unless `--quiet`, with its escape sequences made harmless."""
        if not self.quiet:
            print(clean(text, keep_newlines=True), file=self.people, flush=True)

    def clear(self) -> None:
        """Clear the screen if there is one."""
        if self.live:
            print("\x1b[H\x1b[2J", end="", file=self.people)

    def warn(self, text: str) -> None:
        """Print text of ours for people even with `--quiet`. Escape sequences are made harmless."""
        self._complain(self.pasteable(text))

    def _complain(self, text: str) -> None:
        print(clean(text, keep_newlines=True), file=sys.stderr, flush=True)

    def document(self, value: Mapping[str, Any]) -> None:
        """Print the JSON document of a command; nothing without `--json`."""
        if self.json:
            document = _finite(hints_with_conf({"schema": SCHEMA, **value}, self._conf))
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
        self._complain(message_with_conf(error, str(error), self._conf))
        if error.hint:
            self.warn(f"  {clean(error.hint)}")
        return exit_code(error)

    def traceback(self, error: BaseException) -> None:
        """Print the traceback of an error, for debugging the program."""
        import traceback

        self._complain("".join(traceback.format_exception(error)).rstrip("\n"))

    def finish(self, value: dict[str, Any], error: ClusterctlError | None) -> None:
        """Print the document of a command that may have partly failed, error included, then raise that error."""
        error = error and self.explain(error)
        described = {"error": self._describe(error)} if error is not None else {}
        self.document({**value, **described})
        if error is not None:
            raise ReportedError(error)

    def _describe(self, error: ClusterctlError) -> dict[str, Any]:
        message = message_with_conf(error, error.message, self._conf)
        return {**error.to_json(), "message": message, **({"details": error.details} if error.details else {})}

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
                print(clean(line), file=self.people, flush=True)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, with null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


class ReportedError(ClusterctlError):
    """An error that the JSON document of its command already contains."""

    def __init__(self, error: ClusterctlError) -> None:
        super().__init__(error.message, node=error.node, hint=error.hint, details=error.details)
        self.code = error.exit_code
        self.original = error


def exit_code(error: ClusterctlError) -> int:
    return error.code if isinstance(error, ReportedError) else error.exit_code


def align(headings: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[str] = ()) -> list[str]:
    body = [list(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(headings, *body, strict=True)]
    right = [heading in numeric for heading in headings]
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in ([list(headings)] if any(headings) else []) + body
    ]


def fitting(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[str], dropped_first: Sequence[str]
) -> list[str]:
    """Align a table, dropping columns in the order of `dropped_first` until it fits the terminal's width."""
    width = shutil.get_terminal_size().columns
    lines = align(headings, rows, numeric)
    for name in dropped_first:
        if max(len(line) for line in lines) <= width:
            break
        kept = [i for i, heading in enumerate(headings) if heading != name]
        headings, rows = [headings[i] for i in kept], [[row[i] for i in kept] for row in rows]
        lines = align(headings, rows, numeric)
    return lines


def clean(text: str, *, keep_newlines: bool = False) -> str:
    """Make text from a node safe for a terminal by replacing control and invisible characters with visible ones."""
    if (text.replace("\n", "") if keep_newlines else text).isprintable():
        return text
    return HARMFUL.sub(lambda match: _harmless(match[0], keep_newlines), text)


def _harmless(char: str, keep_newlines: bool) -> str:
    code = ord(char)
    if char == "\n" and keep_newlines:
        return char
    if code < 0x20:
        return chr(0x2400 + code)  # the Unicode pictures of control characters
    return "\ufffd"


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


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"
