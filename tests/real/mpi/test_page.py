"""The commands of docs/openmpi.md work with the real mpirun, and train what a run over SSH does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from contract.docs.pages import Ran, Shell, blocks, examples, missing_words
from real.mpi.lab import HOSTS, SLOTS, Lab, end
from support.models import assert_same_bits, model_bits
from support.places import ROOT
from support.site import make_site

pytestmark = pytest.mark.mpi
PAGE = ROOT / "docs" / "openmpi.md"
TRAINERS = len(HOSTS) * SLOTS


def run_page(shell: Shell) -> list[Ran]:
    """Run all of its commands in order."""
    for block in blocks(PAGE, "console"):
        for example in examples(block):
            ran = shell.run(example)
            transcript = f"{PAGE.name}:{block.line}: $ {ran.command}\n{ran.out}{ran.err}"
            assert ran.code == block.exit_code, f"exit {ran.code}: {transcript}"
            assert missing_words(example, ran) == [], transcript
    return shell.ran


def trained_over_ssh(directory: Path, workspace: Path) -> dict[str, bytes]:
    """Train a pass on the hosts of a hostfile, and return the model."""
    directory.mkdir()
    with make_site("embedded", directory, len(HOSTS)) as site:
        (site.directory / "hosts").write_text("".join(f"node{node} slots={SLOTS}\n" for node in range(len(HOSTS))))
        conf = site.conf(PYTHON=sys.executable, COPIES=1, MODEL_ON_LEAD_MB=0)
        conf.write_text(f'{conf.read_text()}HOSTS = openmpi("hosts")\n')
        job = site.ok("dispatch", str(workspace), "--json").json()["job"]
        site.ok("start", job, "--num_passes=1", timeout_s=200)
        assert len(site.status(job)["processes"]) == len(HOSTS) + TRAINERS
        site.ok("collect", job, "-o", "result")
        return model_bits(site.directory / "result" / "model")


@pytest.mark.timeout(500)
def test_the_commands_of_the_page_work_and_train_the_same_tensors_as_over_ssh(lab: Lab, tmp_path: Path) -> None:
    directory = tmp_path / "page"
    directory.mkdir()
    shell = Shell.make(directory)
    shell.env |= {**lab.environment, "HOME": shell.env["HOME"]}
    ran = run_page(shell)
    outputs = [one.out for one in ran if one.command.startswith("mpirun")]
    assert [out.count("held-out perplexity") for out in outputs] == [TRAINERS]
    workspace = directory / "try" / "workspace"
    lab.ranks.shared = workspace
    rows = json.loads(lab.ranks.cluster("status", "--json"))["processes"]
    places = sorted((row["rank"], row["node"]) for row in rows if row["role"] == "trainer")
    assert places == [(rank, rank // SLOTS) for rank in range(TRAINERS)]
    assert sorted(row["node"] for row in rows if row["role"] == "pserver") == list(range(len(HOSTS)))
    assert_same_bits(lab.ranks.home / "result" / "model", trained_over_ssh(tmp_path / "ssh", workspace))


def test_mpirun_is_a_carrier(lab: Lab) -> None:
    words = ("mpirun", "-np", "1", "--host", "{host}", "--oversubscribe")
    assert repr(words).strip("()").replace("'", '"') in PAGE.read_text()
    conf = f"HOSTS = {HOSTS[:2]!r}\nVIA = {words!r}\nROOT_DIR = {str(lab.directory / 'node{node}')!r}\n"
    lab.ranks.conf(conf)
    code, out, err = end(lab.begin_program("clusterctl", "exec", "--json", "--", "echo $OMPI_COMM_WORLD_SIZE in $PWD"))
    assert code == 0, err
    assert [node["stdout"] for node in json.loads(out)["nodes"]] == [f"1 in {Path.home()}\n"] * 2
