"""The answer to a shell, in the form that the scripts in `scripts.py` read.

A request is in the environment, since programs without this module would take arguments for a command. Its answer is
one line that says what else the shell may offer (`files`, `dirs`, or `none`), then one line for each candidate.
"""

from __future__ import annotations

import os
import sys

from clusterctl.cli.completion.bash_line import Word, quoted, split_line
from clusterctl.cli.completion.candidates import complete

ASKS = "_CLUSTERCTL_COMPLETE"
SEPARATOR = "\x1f"
MOST_SHOWN = 5000


def answer_shell() -> bool:
    """Answer a shell that asks for completions; return False if none asks. Never raises: a shell shows no error."""
    shell = os.environ.get(ASKS)
    if shell not in ("bash", "zsh", "fish"):  # another one has the script that typer makes, and typer answers it
        return False
    try:
        lines = for_bash(os.environ) if shell == "bash" else for_others(os.environ, shell)
        text = "".join(f"{line}\n" for line in lines)
    except Exception:  # noqa: BLE001 - such as a damaged installation, at every press of a key
        text = "files\n"
    sys.stdout.buffer.write(text.encode(errors="replace"))
    return True


def for_bash(environ: os._Environ[str]) -> list[str]:
    """Return the answer for the line of bash up to the cursor.

    Bash replaces the end of a word, after the last of COMP_WORDBREAKS, and takes what it gets as it is, so the answer
    is quoted. In a word with quotes, it has only candidates that need none.
    """
    *words, last = split_line(environ.get("_CLUSTERCTL_LINE", ""))
    replaced = environ.get("_CLUSTERCTL_WORD", "")
    files, found = complete([word.text for word in words[1:]], last.text, environ)
    fitting = (_for_bash(value, last, replaced) for value, _ in found[:MOST_SHOWN])
    return [files, *(value for value in fitting if value is not None)]


def _for_bash(value: str, last: Word, replaced: str) -> str | None:
    """Return what is to stand in place of the end of the `last` word, or None if that cannot be written."""
    written = quoted(value)
    if last.in_quotes:
        typed, written = last.text, value if written == value else ""
    else:
        typed = last.raw
    kept = typed[: len(typed) - len(replaced)] if typed.endswith(replaced) else None
    return written[len(kept) :] if kept is not None and written and written.startswith(kept) else None


def for_others(environ: os._Environ[str], shell: str) -> list[str]:
    """Return the answer for the words of zsh or fish, which quote what they insert: a description follows a tab."""
    _, *words = environ.get("_CLUSTERCTL_WORDS", SEPARATOR).split(SEPARATOR)
    last = words.pop() if words else ""
    last = split_line(last)[-1].text if shell == "fish" else last.lstrip("\"'")  # zsh removes all but an open quote
    files, found = complete(words, last, environ)
    return [files, *(f"{value}\t{about}" for value, about in found[:MOST_SHOWN])]
