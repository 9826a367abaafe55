"""Answers to prompts for secrets: from a list, or typed on a terminal."""

from __future__ import annotations

import os
import pty
import select
import threading


class Person:
    """A prompt that gives these answers in order and records the prompts."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, prompt: str, stop: threading.Event) -> str | None:
        self.asked.append(prompt)
        return self.answers.pop(0) if self.answers else None


def on_terminal(*argv: str) -> tuple[int, int]:
    """Start a process on a new terminal; return its pid and our end of the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    return pid, terminal


def read_until(terminal: int, words: bytes, text: bytes = b"") -> bytes:
    while words not in text:
        assert select.select([terminal], [], [], 180)[0], text
        piece = os.read(terminal, 4096)
        assert piece, text
        text += piece
    return text
