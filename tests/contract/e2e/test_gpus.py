"""GPUs of nodes, with a stand-in for `nvidia-smi` in the PATH of each: dealt to trainers, and shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support import nvidia_smi as recorded
from support.nvidia_smi import Smi
from support.processes import wait_until
from support.site import Site

pytestmark = pytest.mark.slow

SHOW = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('CUDA_DEVICE_ORDER'), flush=True)"
SLEEP = "import time; time.sleep(600)"


def install(site: Site, node: int, smi: Smi) -> Path:
    """Put it into the first directory of a node's PATH."""
    directory = site.home(node) / "bin"
    smi.install(directory)
    return directory


@pytest.fixture
def gpus(site: Site) -> Any:
    """Install it for a test."""
    directories = []

    def put(node: int, smi: Smi) -> Path:
        directories.append(install(site, node, smi))
        return directories[-1]

    yield put
    for directory in directories:
        for path in directory.iterdir():
            path.unlink()


def logs(site: Site, job: str, node: int, count: int) -> list[str]:
    names = ["train.log", *(f"train.{at}.log" for at in range(1, count))]
    return [(site.job_dir(job, node) / "log" / name).read_text().strip() for name in names]


@pytest.mark.nodes(2)
def test_nodes_of_one_machine_share_its_gpus_and_conf_py_overrides_them(site: Site, gpus: Any) -> None:
    for node in range(2):
        gpus(node, recorded.A100)
    host = f"Host({site.hosts[1]!r}, gpus=1, trainers=1)"
    site.conf(ENGINE="none", TRAINERS_PER_NODE=2)
    job = site.start(SHOW)
    site.wait_for_end(job)
    assert logs(site, job, 0, 2) + logs(site, job, 1, 2) == [f"{gpu} PCI_BUS_ID" for gpu in range(4)]
    text = site.conf_path.read_text().replace(repr(site.hosts[1]), host)
    site.conf_path.write_text(text)
    own = site.start(SHOW)
    site.wait_for_end(own)
    assert logs(site, own, 0, 2) + logs(site, own, 1, 1) == ["0,1 PCI_BUS_ID", "2,3 PCI_BUS_ID", "0 PCI_BUS_ID"]


@pytest.mark.nodes(1)
def test_two_trainers_see_two_gpus_each_and_status_and_check_show_who_uses_them(site: Site, gpus: Any) -> None:
    directory = gpus(0, recorded.A100)
    site.conf(ENGINE="none", TRAINERS_PER_NODE=2)
    job = site.start(f"{SHOW}\n{SLEEP}")
    assert wait_until(lambda: all(line.endswith("ID") for line in logs(site, job, 0, 2)))
    assert logs(site, job, 0, 2) == ["0,1 PCI_BUS_ID", "2,3 PCI_BUS_ID"]
    processes = site.status(job)["processes"]
    assert [process["gpus"] for process in processes] == [["0", "1"], ["2", "3"]]
    pids = [process["pid"] for process in processes]
    recorded.A100.with_users((0, pids[0], 2000), (2, pids[1], 512), (3, os.getpid(), 100)).install(directory)
    status = site.status(job)
    assert [process["gpu_memory"] for process in status["processes"]] == [2000 << 20, 512 << 20]
    (user,) = status["nodes"][0]["gpus"]["users"]
    assert (user["gpu"], user["pid"], user["memory"], user["job"]) == (3, os.getpid(), 100 << 20, None)
    shown = site.ok("status", job).out
    assert "gpus  gpu mem" in shown
    assert "2,3    537 MB" in shown
    assert f"node0: GPU 3 is also in use by pid {os.getpid()}" in shown
    checked = site.ok("check").out
    assert "node 0        4 x NVIDIA A100-SXM4-40GB, 42.9 GB free each" in checked
    assert f"GPU 0 is in use by pid {pids[0]}" in checked
    assert f"of {job}, 2.1 GB" in checked
    site.ok("stop", job)
