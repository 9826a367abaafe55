"""The programs of examples/api and of docs/api.md over real nodes."""

from __future__ import annotations

import re
import sys

import pytest

from contract.docs.pages import blocks
from support.places import ROOT
from support.site import Site

pytestmark = pytest.mark.nodes(2)
EXAMPLES = ROOT / "examples" / "api"


def run(site: Site, name: str) -> str:
    ran = site.run(str(EXAMPLES / f"{name}.py"), program=(sys.executable,))
    assert (ran.code, ran.err) == (0, ""), ran.out + ran.err
    return ran.out


@pytest.mark.slow
def test_a_sweep_finds_the_best_of_three_learning_rates(site: Site) -> None:
    printed = run(site, "sweep")
    assert [float(loss) for loss in re.findall(r"loss (\S+)", printed)] != []
    assert printed.endswith("the best learning rate is 0.2\n")


@pytest.mark.slow
def test_a_run_is_stopped_once_a_metric_is_good_enough(site: Site) -> None:
    printed = run(site, "until_good_enough")
    found = re.match(r"(JOB\S+)/1 is stopped with rmse (\S+);", printed)
    assert found, printed
    assert float(found[2]) < 0.1
    site.assert_nothing_left(found[1])


@pytest.mark.slow
def test_a_failed_run_is_resumed_from_its_checkpoint(site: Site) -> None:
    printed = run(site, "restart")
    assert "RuntimeError: the data is broken" in printed
    assert re.search(r"the newest checkpoint is step-0\d+\nJOB\S+/2 succeeded\n$", printed), printed
    (job,) = {found.partition(" ")[0] for found in re.findall(r"JOB\S+", printed) if "/" not in found}
    assert site.status(job)["resumed"]["run"] == "0001"


def test_nodes_that_print_the_same_are_named_together(site: Site) -> None:
    assert re.fullmatch(r"node0, node1: Python 3\.\d+\.\d+\S*\n", run(site, "ask_nodes"))


@pytest.mark.slow
def test_a_model_is_read_into_arrays(site: Site) -> None:
    assert run(site, "model_arrays") == "pass-00002: [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]\n"


@pytest.mark.slow
def test_the_examples_of_the_page_work_in_order(site: Site) -> None:
    (site.directory / "workspace").symlink_to(EXAMPLES / "workspace")
    page = EXAMPLES.parents[1] / "docs" / "api.md"
    program = "\n".join(block.body for block in blocks(page, "python") if not block.note)
    (site.directory / "page.py").write_text(program)
    ran = site.run("page.py", program=(sys.executable,))
    assert (ran.code, ran.err) == (0, ""), ran.out + ran.err
    assert "trainer0 succeeded" in ran.out
