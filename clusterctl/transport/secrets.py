"""Passphrases and passwords: prompted for at the terminal, once each, and kept in memory only."""

from __future__ import annotations

import contextlib
import os
import select
import termios
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterctlError
from clusterctl.transport import paramiko_loader

if TYPE_CHECKING:
    import paramiko

PROMPTS = 3
POLL_S = 0.2
# Prompts the user. Returns the input, or None without a terminal or input. Returns soon after the event is set.
Ask = Callable[[str, threading.Event], "str | None"]


class SecretNeededError(Exception):
    """The server accepted no usable key. It may accept one of `keys`, once unlocked, or a password."""

    def __init__(
        self,
        otherwise: ClusterctlError,
        *,
        keys: Sequence[Path],
        user: str,
        where: str,
        takes_password: bool,
        refused: Iterable[str],
    ) -> None:
        super().__init__(str(otherwise))
        self.otherwise = otherwise  # the error to raise if no secret is entered
        self.keys = tuple(keys)
        self.user = user
        self.where = where
        self.takes_password = takes_password
        self.refused = frozenset(refused)  # passwords that this server rejected


@dataclass
class _Account:
    """The passwords entered for a user name; hosts with the same user name usually share one."""

    passwords: list[str] = field(default_factory=list)
    prompts: int = 0  # since the last correct one


class Credentials:
    """The unlocked keys and passwords of one transport. Thread-safe: one thread prompts, the others wait."""

    def __init__(self, ask: Ask | None = None) -> None:
        self._ask = ask or ask_terminal
        self._asking = threading.Lock()
        self._stop = threading.Event()
        self._keys: dict[Path, paramiko.PKey] = {}
        self._given_up: set[Path] = set()
        self._accounts: defaultdict[str, _Account] = defaultdict(_Account)

    def key(self, path: Path, load: Callable[[], paramiko.PKey] | None = None) -> paramiko.PKey | None:
        """Return the key in a file, loaded once; None if it is locked."""
        if path not in self._keys and load is not None:
            self._keys[path] = load()
        return self._keys.get(path)

    def passwords(self, user: str) -> list[str]:
        """Return the passwords entered for this user so far, the correct ones first."""
        return list(self._accounts[user].passwords)

    def was_right(self, user: str, password: str) -> None:
        """Record that a server accepted this password."""
        account = self._accounts[user]
        account.prompts = 0
        if account.passwords[0] != password:
            account.passwords = [password, *(other for other in account.passwords if other != password)]

    def wait(self) -> None:
        """Wait until the user has finished typing: the caller may need the input."""
        with self._asking:
            return

    def obtain(self, needed: SecretNeededError, stop: threading.Event) -> bool:
        """Return True if there is a new secret to try, after a prompt if necessary."""
        with self._asking:
            if stop.is_set():
                return False
            for path in needed.keys:
                if path not in self._given_up and (path in self._keys or self._unlock(path, stop)):
                    return True
            return needed.takes_password and self._ask_password(needed, stop)

    @property
    def stopped(self) -> threading.Event:
        """The event that the next `stop` sets."""
        return self._stop

    def stop(self) -> None:
        """Cancel the prompt in progress, and skip those that wait for it."""
        stopped, self._stop = self._stop, threading.Event()
        stopped.set()

    def _unlock(self, path: Path, stop: threading.Event) -> bool:
        library = paramiko_loader.load()
        prefix = ""
        for _ in range(PROMPTS):
            passphrase = self._ask(f"{prefix}Passphrase for {path}: ", stop)
            if passphrase is None:
                break
            try:
                self._keys[path] = library.PKey.from_path(path, passphrase.encode())
            except (library.SSHException, ValueError, TypeError):
                prefix = "Wrong passphrase. "
                continue
            return True
        if not stop.is_set():
            self._given_up.add(path)
        return False

    def _ask_password(self, needed: SecretNeededError, stop: threading.Event) -> bool:
        account = self._accounts[needed.user]
        if set(account.passwords) - needed.refused:  # another thread has prompted in the meantime
            return True
        if account.prompts >= PROMPTS:
            return False
        prefix = "Permission denied. " if account.prompts else ""
        password = self._ask(f"{prefix}Password for {needed.where}: ", stop)
        if password is None:
            account.prompts = account.prompts if stop.is_set() else PROMPTS
            return False
        account.prompts += 1
        if password not in account.passwords:
            account.passwords.append(password)
        return password not in needed.refused


def ask_terminal(prompt: str, stop: threading.Event) -> str | None:
    """Prompt on the terminal, without echo. Returns None unless stdin is a terminal, so that no script hangs."""
    try:
        if not os.isatty(0):
            return None
        tty = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    try:
        with _no_echo(tty):
            os.write(tty, prompt.encode(errors="replace"))
            line = _read_line(tty, stop)
            os.write(tty, b"\n")
    finally:
        os.close(tty)
    return line.decode(errors="surrogateescape").rstrip("\r\n") or None


@contextlib.contextmanager
def _no_echo(tty: int) -> Iterator[None]:
    before = termios.tcgetattr(tty)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(tty, termios.TCSAFLUSH, silent)
    try:
        yield
    finally:
        termios.tcsetattr(tty, termios.TCSAFLUSH, before)


def _read_line(tty: int, stop: threading.Event) -> bytes:
    line = b""
    while not line.endswith(b"\n") and not stop.is_set():
        if select.select([tty], [], [], POLL_S)[0]:
            piece = os.read(tty, 4096)
            if not piece:
                break
            line += piece
    return b"" if stop.is_set() else line
