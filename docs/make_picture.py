"""Create docs/demo.svg, a screenshot of the terminal during a real `clusterctl demo`. Needs tmux.

python docs/make_picture.py
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).with_name("demo.svg")
COLUMNS, ROWS = 122, 27
TAKE_WHEN = "pass 2: held-out perplexity"
DEADLINE_S = 180.0


def main() -> None:
    server = ["tmux", "-L", f"picture-{time.time_ns()}"]
    with tempfile.TemporaryDirectory() as directory:
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        program = ["sh", "-c", f"{sys.executable} -m clusterctl demo; read _"]
        subprocess.run([*server, "new-session", "-d", "-s", "demo", *size, "-c", directory, *program], check=True)
        try:
            screen = capture(server, TAKE_WHEN)
            capture(server, "next: do the same by hand")
        finally:
            with contextlib.suppress(OSError):
                subprocess.run([*server, "kill-server"], check=False)
    draw(screen)


def capture(server: list[str], words: str) -> str:
    """Return the screen, with its colours, as soon as it shows `words`."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        taken = subprocess.run([*server, "capture-pane", "-e", "-p", "-t", "demo"], capture_output=True, check=True)
        screen = taken.stdout.decode()
        if words in Text.from_ansi(screen).plain:
            return screen
        time.sleep(0.2)
    raise SystemExit(f"the demo did not show {words!r} within {DEADLINE_S:.0f} s")


def draw(screen: str) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi("$ clusterctl demo\n...\n" + screen.rstrip()))
    svg = console.export_svg(title="clusterctl demo")
    PICTURE.write_text(svg.replace("<text ", '<text xml:space="preserve" '))  # otherwise some viewers drop indentation


if __name__ == "__main__":
    main()
