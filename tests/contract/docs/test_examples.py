"""The pages match reality: their programs and commands work, and every setting and field is described."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl import config, fake
from contract.docs.pages import JOB, PAGES, Block, Example, Shell, blocks, examples, missing_words
from contract.documents import command_of, problems
from support.places import ROOT
from support.processes import processes_with_environment

SHORT = ("openmpi.md",)  # the pages that `make test` runs; `make slow` runs the others
ELSEWHERE = ("kubernetes.md", "slurm.md", "tutorial.md")  # run in tests/real and by test_tutorial.py
PROGRAMS_ELSEWHERE = ("api.md",)  # run by tests/contract/e2e/test_api_programs.py


def named(pages: list[Path]) -> list[object]:
    return [pytest.param(page, id=page.name) for page in pages]


def with_commands() -> list[object]:
    pages = [page for page in PAGES if page.name not in ELSEWHERE and any(blocks(page, "console"))]
    return [pytest.param(page, id=page.name, marks=() if page.name in SHORT else pytest.mark.slow) for page in pages]


def programs() -> list[object]:
    pages = [page for page in PAGES if page.name not in PROGRAMS_ELSEWHERE]
    found_blocks = [(page, block) for page in pages for block in blocks(page, "python")]
    return [pytest.param(block, id=f"{page.name}:{block.line}") for page, block in found_blocks]


@pytest.mark.parametrize("block", programs())
def test_a_python_example_works(block: Block, tmp_path: Path) -> None:
    if not block.is_run:
        pytest.skip(block.note)
    if block.note == "conf.py":
        (tmp_path / "conf.py").write_text(block.body)
        assert config.load(tmp_path / "conf.py", {"HOME": str(tmp_path)}).hosts
        return
    (tmp_path / "example.py").write_text(block.body)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "example.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == block.exit_code, done.stdout + done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", with_commands())
def test_the_commands_of_a_page_work_in_order(page: Path, tmp_path: Path) -> None:
    shell, training = Shell.make(tmp_path), set[str]()
    try:
        for block in blocks(page, "console"):
            for example in examples(block) if block.is_run else []:
                with only_where_it_is_named(training, example, tmp_path):
                    ran = shell.run(example)
                transcript = f"{page.name}:{block.line}: $ {ran.command}\n{ran.out}{ran.err}"
                assert ran.code == block.exit_code, f"exit {ran.code}: {transcript}"
                assert missing_words(example, ran) == [], transcript
    finally:
        for conf in tmp_path.glob("**/fake/ssh_config"):
            fake.down(conf.parent)
    if page.name == "commands.md":
        assert undeclared_documents(shell) == []


@contextlib.contextmanager
def only_where_it_is_named(training: set[str], example: Example, directory: Path) -> Iterator[None]:
    """Pause detached trainings, except during commands that name one: the machine is for the commands."""
    homes = [str(path) for home in homes_below(directory) for path in home.iterdir()]

    def send(number: int) -> None:
        for process in processes_with_environment("HOME", *homes) if training else []:
            if "train.py" in process.command:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    if not training.isdisjoint(JOB.findall(example.command)):
        send(signal.SIGCONT)
    yield
    if "--detach" in example.command:
        training.update(JOB.findall("\n".join(example.output)))
    send(signal.SIGSTOP)


def homes_below(directory: Path) -> Iterator[Path]:
    """Yield the directories with the nodes of fake clusters, and do not look into these: nodes remove files."""
    for path, names, _ in os.walk(directory):
        if path.endswith("/fake/nodes"):
            names.clear()
            yield Path(path)


def undeclared_documents(shell: Shell) -> list[str]:
    """Return what is not as declared of the printed JSON documents."""
    shown = [(command_in(ran.command), ran.out) for ran in shell.ran if "--json" in ran.command]
    documents = [(command, json.loads(out)) for command, out in shown if command and out.startswith("{\n")]
    assert len(documents) >= 20
    return [f"{command}: {problem}" for command, document in documents for problem in problems(command, document)]


def command_in(line: str) -> str | None:
    words = line.split()
    return next((name for at in range(len(words)) if (name := command_of(" ".join(words[at : at + 2])))), None)


@pytest.mark.parametrize("page", named(PAGES))
def test_links_between_pages_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_no_page_contains_a_path_of_the_machine_it_was_written_on() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert str(ROOT) not in text
        assert str(Path.home()) + "/" not in text
