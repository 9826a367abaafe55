"""Commands in hints work when pasted, also if the call had `--conf`."""

from __future__ import annotations

import re
import shlex

import pytest

from contract.e2e.programs import REGRESSION
from support.site import Result, Site

pytestmark = [pytest.mark.nodes(1), pytest.mark.slow]
CONF = "my lab/conf.py"
BROKEN = """
from clusterctl.runtime import SGD, connect, zeros

with connect() as ps:
    table = ps.dense("w", shape=2, rule=SGD(0.1), init=zeros())
    for n in ps.steps(lambda pass_, rng: range(20), passes=1):
        ps.push({table: table.value + 1}, samples=1)
        if n == 12:
            raise IndexError("number 12")
"""


@pytest.fixture
def elsewhere(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site whose conf.py is found with `--conf` only."""
    path = site.directory / CONF
    path.parent.mkdir()
    site.conf_path.rename(path)
    monkeypatch.setattr(site, "environment", {"CLUSTERCTL_CONF": str(site.directory / "missing.py")})
    return site


def paste(site: Site, command: str) -> Result:
    words = shlex.split(command)
    assert words.pop(0) == "clusterctl"
    return site.run(*words)


def commands(text: str) -> list[str]:
    return [match.strip() for match in re.findall(r"clusterctl .*?(?=;|   |$)", text, re.MULTILINE)]


def test_the_next_command_of_each_step_works(elsewhere: Site) -> None:
    site = elsewhere
    said = site.ok("--conf", CONF, "dispatch", str(site.workspace(REGRESSION))).out
    for _ in ("start", "collect"):
        (following,) = commands(said)
        assert f"--conf '{CONF}'" in following
        done = paste(site, following)
        assert done.code == 0, done.err
        said = done.out
    assert list(site.directory.glob("JOB*"))


def test_after_a_failure_the_hints_name_the_command_for_a_corrected_program(site: Site) -> None:
    site.conf(SAVE_EVERY="5 steps")
    site.workspace(BROKEN)
    failed = site.run("start", "workspace")
    assert failed.code == 1
    job = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    corrected = f"clusterctl start WORKSPACE --resume-from {job}"
    assert corrected in commands(failed.err)
    assert corrected in commands(site.ok("why").out)
    site.workspace(BROKEN.partition("        if n == 12")[0])
    refused = site.run("start", "workspace/", "--resume")
    assert refused.code == 2
    assert "clusterctl start workspace/ --resume-from JOB" in refused.err
    done = paste(site, corrected.replace("WORKSPACE", "workspace"))
    assert done.code == 0, done.err
    assert "resuming from checkpoint step-0000000" in done.out


def test_output_of_commands_and_logs_is_not_rewritten(elsewhere: Site) -> None:
    site, words = elsewhere, "clusterctl stop JOB1"
    assert site.ok("--conf", CONF, "exec", "--fold", "--", "echo", words).out == f"--- node0\n{words}\n"
    (site.directory / CONF).write_text((site.directory / CONF).read_text() + "ENGINE = 'none'\n")
    workspace = str(site.workspace(f"import sys\nprint({words!r}, file=sys.stderr)\nsys.exit(3)\n"))
    failed = site.run("--conf", CONF, "start", "--job_dispatch_package", workspace)
    assert failed.code == 1
    assert f"clusterctl --conf '{CONF}' why JOB" in failed.err
    shown = site.ok("--conf", CONF, "why").out
    assert words in shown
    assert f"clusterctl --conf '{CONF}' stop JOB1" not in shown
