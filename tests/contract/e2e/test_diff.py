"""`clusterctl diff` of real runs on real nodes."""

from __future__ import annotations

from typing import Any

import pytest

from contract.e2e.programs import REGRESSION
from support.site import Site

pytestmark = [pytest.mark.nodes(1), pytest.mark.slow]
SECRET = "hunter2-in-env"


def by_name(document: dict[str, Any], section: str) -> dict[str, tuple[Any, Any]]:
    return {one["name"]: (one["a"], one["b"]) for one in document[section] if not one["same"]}


def two_jobs(site: Site) -> list[str]:
    """Run two jobs: the second one is of a changed workspace, with other arguments, settings and ENV."""
    site.conf(ENV={"API": SECRET, "ONLY_A": "1"})
    first = site.workspace(REGRESSION, "first", **{"gone.txt": "x", "same.txt": "y"})
    site.ok("start", "--name=a", str(first), "--", "--num_passes=2", "--token", "of-the-first")
    site.conf(ENV={"API": SECRET + "!"}, SEED=7)
    changed = REGRESSION.replace('print("done with", rest)', 'print("all done with", rest)')
    second = site.workspace(changed, "second", **{"new.txt": "longer", "same.txt": "y"})
    site.ok("start", "--job_dispatch_package", str(second), "--", "--num_passes=3", "--token", "of-the-second")
    second_job, first_job = [job["job"] for job in site.ok("jobs", "--json").json()["jobs"]][:2]
    return [first_job, second_job]


def test_two_runs_differ_in_what_was_changed(site: Site) -> None:
    jobs = two_jobs(site)
    document = site.ok("diff", "a", jobs[1], "--json")
    found = document.json()
    assert [(found[side]["job"], found[side]["run"]) for side in ("a", "b")] == [(job, "0001") for job in jobs]
    assert by_name(found, "settings") == {"SEED": ("0", "7")}
    assert by_name(found, "arguments") == {"--num_passes": ("2", "3")}
    assert by_name(found, "env") == {"API": (True, True), "ONLY_A": (True, False)}
    assert by_name(found, "packages") == {}
    assert {"python", "numpy", "pyzmq"} <= {one["name"] for one in found["packages"]}
    files = by_name(found, "files")
    assert {name: tuple(side and [one["bytes"] for one in side] for side in both) for name, both in files.items()} == {
        "gone.txt": ([1], None),
        "new.txt": (None, [6]),
        "train.py": ([len(REGRESSION)], [len(REGRESSION) + 4]),
    }
    assert by_name(found, "facts") == {"workspace": ("first", "second")}
    assert by_name(found, "figures")["step"] == (10, 15)
    a, b = by_name(found, "metrics")["loss"]
    assert b["final"] < a["final"]
    assert "score" not in by_name(found, "metrics")
    assert_people_see_only_differences_and_no_secrets(site, jobs, document.out)
    (site.job_dir(jobs[0], 0) / "same.txt").write_text("changed")
    same = site.ok("diff", jobs[0], f"~/clusterctl/{jobs[0]}/0001")
    assert same.out.splitlines()[2:] == ["the same: run, settings, arguments, ENV, packages, files, metrics"]
    assert f"1 file of {jobs[0]} changed on node0 since the dispatch" in same.err


def assert_people_see_only_differences_and_no_secrets(site: Site, jobs: list[str], document: str) -> None:
    done = site.ok("diff", jobs[0], f"{jobs[1]}/1", env={"COLUMNS": "80"})
    lines = done.out.splitlines()
    assert lines[:2] == [f"A  {jobs[0]} run 1  succeeded", f"B  {jobs[1]} run 1  succeeded"]
    assert lines[-1] == "the same: packages"
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines if "train.py" in line or "SEED" in line] == [
        ["SEED", "0", "7"],
        ["train.py", str(len(REGRESSION)), "B", str(len(REGRESSION) + 4), "B", "changed"],
    ]
    shown = done.out + done.err + document
    assert [secret for secret in (SECRET, "of-the-first", "of-the-second") if secret in shown] == []
