"""The commands of docs/tutorial.md work in order, on a fake cluster and then on three machines with real sshd."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterctl import fake
from contract.docs.pages import Shell, blocks, examples, missing_words
from support.openssh import OpenSshCluster, openssh_cluster
from support.places import ROOT

pytestmark = pytest.mark.slow

MACHINES = ("alpha", "beta", "gamma")


def give_ssh_config(home: Path, machines: OpenSshCluster) -> None:
    """Write the ~/.ssh/config of somebody who has these machines, and knows no keys of theirs yet."""
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700)
    for name, daemon in zip(MACHINES, machines.daemons, strict=True):
        lines = (f"Host {name}", "HostName 127.0.0.1", f"Port {daemon.port}", f"IdentityFile {machines.identity}")
        with (ssh / "config").open("a") as file:
            file.write("\n    ".join(lines) + "\n")
        python = daemon.home.parent / "bin" / "python3"  # one that has numpy, as `setup` would make it
        python.parent.mkdir(exist_ok=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)


@pytest.mark.timeout(900)
def test_the_commands_of_the_tutorial_work(tmp_path: Path) -> None:
    shell = Shell.make(tmp_path)
    with openssh_cluster(tmp_path / "machines", len(MACHINES)) as machines:
        give_ssh_config(Path(shell.env["HOME"]), machines)
        try:
            for block in blocks(ROOT / "docs/tutorial.md", "console"):
                for example in examples(block) if block.is_run else []:
                    ran = shell.run(example)
                    transcript = f"tutorial.md:{block.line}: $ {ran.command}\n{ran.out}{ran.err}"
                    assert ran.code == block.exit_code, f"exit {ran.code}: {transcript}"
                    assert missing_words(example, ran) == [], transcript
        finally:
            fake.down(tmp_path / "films" / "fake")
