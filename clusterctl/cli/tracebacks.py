"""Tracebacks of many processes, each in one line. Pure."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

BEGIN = "Traceback (most recent call last)"
FRAME = re.compile(r'\s*File "([^"]+)", line (\d+)')
MOST_FRAMES = 1000  # of one traceback
#: Lines that a node has to send so that tracebacks can be put together: their beginning, and their frames.
PATTERN = r'^\s+File "'


class TracebackFolder:
    """Puts the lines of one process's tracebacks together: `KeyError: 'learning_rate' (train.py:12)`."""

    def __init__(self) -> None:
        self._frames: list[tuple[str, str]] | None = None

    def take(self, line: str) -> str | None:
        """Return the line to show for this one: a traceback's last line with its place, or the line itself; or none."""
        if BEGIN in line:
            self._frames = []
            return None
        frame = FRAME.match(line)
        if self._frames is None:
            return None if frame else line
        if frame:
            if len(self._frames) < MOST_FRAMES:
                self._frames.append((frame[1], frame[2]))
            return None
        if line[:1].isspace() or not line:
            return None
        frames, self._frames = self._frames, None
        return f"{line} ({_place(frames)})" if frames else line


def _place(frames: list[tuple[str, str]]) -> str:
    """Return the innermost frame of the program itself, else the innermost one."""
    own = [frame for frame in frames if "/site-packages/" not in frame[0] and "/clusterctl/runtime/" not in frame[0]]
    own = [frame for frame in own if "/lib/python" not in frame[0] and not frame[0].startswith("<")]
    path, line = (own or frames)[-1]
    return f"{PurePosixPath(path).name}:{line}"
