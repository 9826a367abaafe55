"""Which models stay on the nodes and which ones `collect` brings: the newest, one by its name, or all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import load_model
from contract.e2e.programs import REGRESSION
from support.processes import wait_until
from support.site import Site

pytestmark = [pytest.mark.nodes(2), pytest.mark.copies, pytest.mark.slow]
FAIL = REGRESSION.replace('print("end of pass"', 'pass_ == 3 and 1 / len(rest); print("end of pass"')


def models(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "output").iterdir() if path.is_dir())


def collect(site: Site, *args: str) -> Any:
    return site.ok("collect", *args, "--json").json()


def test_keep_models_limits_the_nodes_and_collect_brings_the_newest_unless_asked_for_more(site: Site) -> None:
    site.conf(KEEP_MODELS=3)
    program = REGRESSION.replace('print("end of pass"', 'pass_ == 1 and ps.save("mine"); print("end of pass"')
    job = site.dispatch(program)
    site.ok("start", "--job_workspace", job, "--", "--num_passes", "6")
    kept = ["mine", "pass-00003", "pass-00004", "pass-00005"]
    assert wait_until(lambda: all(models(site.job_dir(job, node)) == kept for node in range(2)))
    first = collect(site, job, "-o", "home")
    assert (first["tag"], first["more_models"]) == ("pass-00005", 2)
    home = site.directory / "home"
    assert models(home / "node-1") == ["mine", "pass-00005"]
    assert "2 earlier models" in site.ok("collect", job, "-o", "home").out
    assert collect(site, job, "-o", "home", "--all")["more_models"] == 0
    assert models(home / "node-0") == models(home / "node-1") == kept
    for node in range(2):
        for piece in (site.job_dir(job, node) / "output/pass-00003").iterdir():
            piece.unlink()
        (site.job_dir(job, node) / "output/pass-00003").rmdir()
    collect(site, job, "-o", "home")
    assert models(home / "node-0") == kept  # also the one that is gone from the nodes
    assert (home / "node-0/output/pass-00003/pserver-00000.safetensors").is_file()
    named = collect(site, job, "-o", "other", "--tag", "mine")
    assert models(site.directory / "other/node-0") == ["mine"]
    assert set(load_model(site.directory / named["model"])) == {"w", "e"}


def test_a_model_of_an_earlier_run_can_be_collected_after_a_later_one_failed(site: Site) -> None:
    job = site.dispatch(FAIL)
    site.ok("start", "--job_workspace", job, "--", "--num_passes", "3")
    whole = collect(site, job, "-o", "first")
    failed = site.run("start", "--job_workspace", job, "--", "--num_passes", "9")
    assert failed.code == 1
    assert collect(site, job, "-o", "second")["tag"] == "pass-00002"
    again = collect(site, job, "-o", "again", "--run", "1")
    assert (again["run"], again["tag"]) == ("0001", "pass-00002")
    read, expected = (load_model(site.directory / one["model"]) for one in (again, whole))
    assert all(
        np.array_equal(a, b) for a, b in zip([read["w"], *read["e"]], [expected["w"], *expected["e"]], strict=True)
    )
    log = "again/node-0/log/train.log"
    assert (site.directory / log).read_bytes() == (site.directory / log.replace("again", "first")).read_bytes()
    earlier = collect(site, job, "-o", "earlier", "--run", "1", "--pass", "0")
    assert (earlier["tag"], models(site.directory / "earlier/node-1")) == ("pass-00000", ["pass-00000"])
    for options, words in (
        (("--run", "7"), f"{job} has no run 7"),
        (("--run", "1", "--pass", "4"), "has no complete model pass-00004"),
        (("--tag", "x", "--pass", "4"), "--tag and --pass both name a model"),
        (("--tag", "../x"), "cannot be the tag of a model"),
    ):
        refused = site.run("collect", job, "-o", "none", *options)
        assert (refused.code, words in refused.err) == (2, True), refused
