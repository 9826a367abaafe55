"""Fenced blocks of a Markdown page, and a shell that runs its `console` ones as a reader would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.places import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

BLOCK = re.compile(r"(?:^<!-- (?P<note>[^>]*?) -->\n)?^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
JOB = re.compile(r"JOB\d{8}-\d{6}(?:-\d+)?")
UNLIKE = re.compile(r"(?<!\S)/\S+|SHA256:\S+")  # differs between machines
WORD = re.compile(r"[A-Za-z_]{4,}")
COMMAND_S = 300.0


@dataclass(frozen=True)
class Block:
    """A fenced block. `note` is the HTML comment right before it: `exit: 2`, `conf.py`, `not run: why`."""

    kind: str
    note: str
    body: str
    line: int

    @property
    def is_run(self) -> bool:
        return not self.note.startswith("not run: ")

    @property
    def exit_code(self) -> int:
        return int(self.note.removeprefix("exit: ")) if self.note.startswith("exit: ") else 0


@dataclass(frozen=True)
class Example:
    """A command of a console block, and the output that the page shows for it; `...` in it stands for more."""

    command: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Ran:
    command: str
    code: int
    out: str
    err: str


def blocks(page: Path, *kinds: str) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        if match["kind"] in kinds:
            line = text.count("\n", 0, match.start("body")) + 1
            yield Block(match["kind"], match["note"] or "", match["body"], line)


def examples(block: Block) -> list[Example]:
    found: list[tuple[str, list[str]]] = []
    for line in block.body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.startswith("> "):
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", found[-1][1])
        else:
            found[-1][1].append(line)
    return [Example(command, tuple(output)) for command, output in found]


@dataclass
class Shell:
    """Runs commands one after the other; `cd` and `export` persist. Real job ids replace those on the page."""

    directory: Path
    env: dict[str, str]
    ran: list[Ran] = field(default_factory=list)
    _ids: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, directory: Path) -> Shell:
        home = directory / "home"
        home.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERCTL_")}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        env = {**kept, "PATH": path, "HOME": str(home), "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "120"}
        return cls(directory, env)

    def run(self, example: Example) -> Ran:
        command = JOB.sub(lambda match: self._ids.get(match[0], match[0]), example.command)
        state = Path(self.env["HOME"]).with_name("state-of-the-shell")
        after = f"pwd > {shlex.quote(str(state))}; env -0 >> {shlex.quote(str(state))}"
        done = subprocess.run(
            ["bash", "-c", f"{command}\ncode=$?\n{after}\nexit $code"],
            cwd=self.directory,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            check=False,
        )
        self._remember(state)
        if "prepare_data.py" in command:
            halve_data(self.directory)
        self._learn_ids(example, done.stdout + done.stderr)
        self.ran.append(Ran(command, done.returncode, done.stdout, done.stderr))
        return self.ran[-1]

    def _remember(self, state: Path) -> None:
        where, _, variables = state.read_text().partition("\n")
        state.unlink()
        self.directory = Path(where)
        self.env = dict(entry.split("=", 1) for entry in variables.split("\0") if "=" in entry)

    def _learn_ids(self, example: Example, actual: str) -> None:
        """Match new job ids in order: the first one that the page shows is the first one in the actual output."""
        shown = [job for job in dict.fromkeys(JOB.findall("\n".join(example.output))) if job not in self._ids]
        known = set(self._ids.values())
        new = [job for job in dict.fromkeys(JOB.findall(actual)) if job not in known]
        self._ids.update(zip(shown, new, strict=False))


def halve_data(directory: Path) -> None:
    """Keep every second line of the data of a template: the commands matter, not the model."""
    for path in directory.glob("*/data/*.txt-*"):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[::2]))


def missing_words(example: Example, ran: Ran) -> list[str]:
    """Return the words that the page shows as output and that were not printed."""
    printed = set(WORD.findall(ran.out + ran.err))
    text = "\n".join(line for line in example.output if line != "...")
    shown = WORD.findall(UNLIKE.sub("", text))
    return [word for word in dict.fromkeys(shown) if word not in printed]
