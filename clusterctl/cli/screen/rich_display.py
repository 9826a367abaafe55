"""A display that redraws itself below the lines that scroll, or on a screen of its own. It loads rich."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console as RichConsole
from rich.live import Live
from rich.text import Text

from clusterctl.cli.console import Console

REDRAWS_PER_S = 4


class RichDisplay:
    """Shows what `draw(width, height)` returns, a few times each second. A context manager."""

    def __init__(self, console: Console, draw: Callable[[int, int], Sequence[str]], *, own_screen: bool) -> None:
        self._console = console
        self._draw = draw
        self._rich = RichConsole(file=console.people, highlight=False, emoji=False, markup=False)
        self._live = Live(
            console=self._rich, screen=own_screen, refresh_per_second=REDRAWS_PER_S, get_renderable=self._lines
        )

    def __enter__(self) -> RichDisplay:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def refresh(self) -> None:
        """Draw now."""
        self._live.refresh()

    def print(self, text: str) -> None:
        """Print text above the display."""
        self._rich.print(self._text(text, keep_newlines=True), soft_wrap=True)

    def _lines(self) -> Text:
        lines = map(self._text, self._draw(*self._rich.size))
        return Text("\n", no_wrap=True, overflow="crop").join(lines)

    def _text(self, text: str, *, keep_newlines: bool = False) -> Text:
        rendered = self._console.rendered(text, self._console.people, keep_newlines=keep_newlines)
        return Text.from_ansi(rendered.expandtabs())  # rich takes 20 microseconds for each tab
