"""`clusterctl export` and `clusterctl metrics` of real runs on real nodes."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.openssh import free_port
from support.processes import wait_until
from support.site import Site, events_in
from unit.export.test_tensorboard import scalars
from unit.export.test_trace import check

pytestmark = [pytest.mark.nodes(1), pytest.mark.slow]
SECRET = "hunter2-in-env"
#: A trainer that reports a NaN, logs metrics of its own, and repeats a step after it was restarted.
TRAIN = """
import os, sys
import numpy as np
from clusterctl.runtime import connect, Adagrad, zeros

def reader(pass_, rng):
    for _ in range(30):
        yield rng.standard_normal(4, dtype=np.float32)

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adagrad(0.5), init=zeros())
    emb = ps.embedding("-word", dim=2, rule=Adagrad(0.5))
    for n, x in enumerate(ps.steps(reader, passes=2)):
        rows = emb.pull(np.arange(3))
        ps.push({w: x, emb: (np.arange(3), rows)}, samples=7, loss=float(np.abs(x).sum()))
        ps.log(**{"=top\\x1b 5 %": float(x[0]), f"of {os.environ['API']}": 1.0}, gap=float("nan" if n == 4 else "inf"))
"""


@pytest.fixture(scope="module")
def jobs() -> list[str]:
    return []


@pytest.fixture
def job(site: Site, jobs: list[str]) -> str:
    """A job that has ended. All tests of this module read the same one."""
    site.conf(ENV={"API": SECRET}, MODE="async", TRAINERS_PER_NODE=2)
    if not jobs:
        site.ok("start", "--job_dispatch_package", str(site.workspace(TRAIN)))
        jobs.append(site.ok("status", "--json").json()["job"])
    return jobs[0]


def events(site: Site, job: str) -> Iterator[dict[str, Any]]:
    for node in range(len(site.hosts)):
        path = site.job_dir(job, node) / ".clusterctl/runs/0001/events.jsonl"
        yield from events_in(path)


def logged(site: Site, job: str) -> list[tuple[str, str, float, int, float, float]]:
    """Return what the events of trainers say: process, name, time, step, value, weight."""
    found = []
    for event in events(site, job):
        process = f"{event.get('role')}{event.get('rank')}"
        if event["event"] == "log" and "values" in event:
            values = [(name, value, event["weight"]) for name, value in event["values"].items()]
        elif event["event"] == "step" and event["role"] == "trainer":
            names = ("loss", "samples_per_s", "compute", "wait", "wire")
            values = [(name, event[name], event["samples"] if name == "loss" else 1) for name in names if name in event]
        else:
            continue
        found += [(process, name, event["t"], event["step"], value, weight) for name, value, weight in values]
    return found


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def test_all_points_of_a_run_are_exported_as_the_events_have_them(site: Site, job: str) -> None:
    """The clocks of these nodes are one: the times differ by what the measurement of the offset may be wrong."""
    expected = sorted(logged(site, job), key=lambda point: point[0])  # in each process in their order
    assert {"loss", "gap"} <= {name for _, name, *_ in expected}
    done = site.ok("export", "--to", "csv", "-o", "tables", job, "--json").json()
    with (site.directory / "tables" / "points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert done["count"] == len(rows)
    of_trainers = [row for row in rows if row["role"] == "trainer" and row["of"] in ("step", "log")]
    of_trainers.sort(key=lambda row: row["rank"])
    assert len(of_trainers) == len(expected)
    for row, (process, name, t, step, value, weight) in zip(of_trainers, expected, strict=True):
        assert row["role"] + row["rank"] == process
        assert row["name"].lstrip("'") == name.replace("\x1b", "\u241b").replace(SECRET, "$API")
        assert (int(row["step"]), float(row["weight"]), row["undone"]) == (step, weight, "0")
        assert same(float(row["value"]), value)
        assert abs(float(row["t"]) - t) < 1
    tables = {row["name"] for row in rows if row["of"] == "table"}
    assert {"'-word.rows", "'-word.bytes"} <= tables
    timeline = (site.directory / "tables" / "timeline.csv").read_text()
    assert "all processes are running" in timeline
    assert SECRET not in "".join(path.read_text() for path in (site.directory / "tables").iterdir())


def test_event_files_have_the_same_points_as_float32(site: Site, job: str) -> None:
    said = site.ok("export", "--to", "tensorboard", "logs/one", job)
    assert "tensorboard --logdir logs/one" in said.out
    expected = sorted(
        (process, "log/gap" if name == "gap" else f"step/{name}", step, struct.pack("<f", value))
        for process, name, _, step, value, _ in logged(site, job)
        if name in ("gap", "loss", "samples_per_s")
    )
    found = [
        (directory.name, tag, step, struct.pack("<f", value))
        for directory in (site.directory / "logs/one").iterdir()
        if directory.is_dir()
        for tag, step, _, value in scalars(directory)
    ]
    assert (
        sorted(row for row in found if row[1] in ("log/gap", "step/loss", "step/samples_per_s") and "trainer" in row[0])
        == expected
    )
    assert not [tag for _, tag, *_ in found if SECRET in tag or "\x1b" in tag]


def test_a_trace_has_the_states_and_the_marks_of_the_run(site: Site, job: str) -> None:
    said = site.ok("export", "--to", "trace", "trace", job)
    assert "https://ui.perfetto.dev" in said.out
    trace = json.loads((site.directory / "trace/trace.json").read_text())
    check(trace["traceEvents"])
    threads = {one["args"]["name"] for one in trace["traceEvents"] if one["name"] == "thread_name"}
    assert threads == {"pserver0", "trainer0", "trainer1"}
    spans = [one["name"] for one in trace["traceEvents"] if one["ph"] == "X"]
    assert spans.count("running") == 3
    texts = {one["args"]["text"] for one in trace["traceEvents"] if one["ph"] == "i"}
    assert {"starting pservers", "all processes are running"} <= texts
    assert any(one["name"] == "trainer1 samples/s" for one in trace["traceEvents"] if one["ph"] == "C")


STEPS_UNTIL_STOPPED = """
import itertools, time
import numpy as np
from clusterctl.runtime import connect, Adagrad, zeros

with connect() as ps:
    w = ps.dense("w", shape=(4,), rule=Adagrad(0.5), init=zeros())
    for _ in ps.steps(lambda pass_, rng: itertools.repeat(1), passes=1):
        ps.push({w: np.ones(4, np.float32)}, samples=10, loss=0.25)
        ps.log(auc=0.5, **{'a "b': 1.0})
        time.sleep(0.05)
"""


@pytest.mark.nodes(2)
def test_points_that_a_roll_back_undid_are_kept_apart(site: Site) -> None:
    site.conf(RESTARTS=3)
    job = site.start(STEPS_UNTIL_STOPPED)

    def trains(attempt: int) -> bool:
        found = [one for one in events(site, job) if one["event"] == "step" and one["role"] == "trainer"]
        return {one["rank"] for one in found if one["attempt"] == attempt and one["step"] > 20} == {0, 1}

    assert wait_until(lambda: trains(1))
    (pserver,) = [one for one in site.status(job)["processes"] if (one["role"], one["rank"]) == ("pserver", 0)]
    os.kill(pserver["pid"], signal.SIGKILL)
    assert wait_until(lambda: trains(2))
    site.ok("stop", job)
    site.ok("export", "--to", "csv", "tables", job)
    with (site.directory / "tables" / "points.csv").open(newline="") as file:
        losses = [row for row in csv.DictReader(file) if row["name"] == "loss"]
    back_to = next(event["step"] for event in events(site, job) if event["event"] == "rolled_back")
    for rank in ("0", "1"):
        first, second = ([row for row in losses if (row["rank"], row["attempt"]) == (rank, n)] for n in ("1", "2"))
        undone = [row for row in first if row["undone"] == "1"]
        assert undone == [row for row in first if int(row["step"]) > back_to]
        assert len(undone) > 0
        assert {row["undone"] for row in second} == {"0"}
    site.ok("export", "--to", "tensorboard", "logs", job)
    names = {path.name for path in (site.directory / "logs").iterdir() if path.is_dir()}
    assert {"trainer0", "trainer0-undone", "trainer1-undone"} <= names
    assert not [name for name in names if name.startswith("pserver") and "undone" in name]


PROMETHEUS = ("export", "--to", "prometheus")


class Served:
    """`clusterctl export --to prometheus` on a free port."""

    def __init__(self, site: Site, *arguments: str, listen: str = "127.0.0.1:0") -> None:
        self.process = site.popen(*PROMETHEUS, "--listen", listen, *arguments)
        assert self.process.stdout is not None
        match = re.search(r"http://(\S+)/metrics", self.process.stdout.readline())
        assert match is not None, self.process.stderr and self.process.stderr.read()
        self.address = match[1]

    def __enter__(self) -> Served:
        return self

    def text(self) -> str:
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=180) as reply:
            return str(reply.read().decode())

    def interrupt(self) -> tuple[int, str, str]:
        """Send Ctrl-C; return the exit code, the output after the first line, and the errors."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(180)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        return code, self.process.stdout.read(), self.process.stderr.read()

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_metrics_serves_the_state_of_the_run_until_ctrl_c(site: Site) -> None:
    job = site.start(STEPS_UNTIL_STOPPED)
    with Served(site) as served:
        about = f'job="{job}",node="node0",rank="0",role="trainer",run="1"'
        own = about.replace(",node", ',name="a \\"b",node')
        wanted = (
            f'clusterctl_run_state{{job="{job}",run="1",state="running"}} 1.0',
            f"clusterctl_loss{{{about}}} 0.25",
            f"clusterctl_value{{{own}}} 1.0",
        )
        assert wait_until(lambda: all(line in served.text() for line in wanted)), served.text()
        of_each = "clusterctl_process_resident_memory_bytes{"
        assert wait_until(lambda: served.text().count(of_each) == 2), served.text()
        taken = site.run("metrics", "--listen", served.address)  # its older name
        assert (taken.code, "in use" in taken.err) == (4, True)
        site.ok("stop", job)
        assert wait_until(lambda: 'state="stopped"} 1.0' in served.text())
        code, out, err = served.interrupt()
    assert (code, err) == (130, "interrupted\n")
    assert f'targets: ["{served.address}"]' in out
    assert "honor_labels: true" in out


def test_metrics_refuses_what_cannot_be_served_and_warns_of_what_others_can_see(site: Site) -> None:
    for wrong in (("--listen", "9464"), ("--listen", "127.0.0.1:0", "JOB-that-is-not"), ("-o", "out")):
        assert site.run(*PROMETHEUS, *wrong).code == 2
    assert not (site.directory / "out").exists()
    site.dispatch("")
    with Served(site, listen="0.0.0.0:0") as served:
        _, _, err = served.interrupt()
    assert "has no login" in err


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus: apt-get install prometheus")
@pytest.mark.nodes(2)
def test_prometheus_scrapes_the_metrics_and_promtool_has_no_objection(site: Site, tmp_path: Path) -> None:
    job = site.start(STEPS_UNTIL_STOPPED)
    with Served(site) as served:
        assert wait_until(lambda: "clusterctl_value{" in served.text())
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=served.text(), capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
        with prometheus(tmp_path, served.address) as ask:
            query = f'clusterctl_value{{job="{job}",name="auc"}}'
            assert wait_until(lambda: len(ask(query)) == 2)
            assert {(one["metric"]["rank"], one["value"][1]) for one in ask(query)} == {("0", "0.5"), ("1", "0.5")}
            assert [one["value"][1] for one in ask('up{job="clusterctl"}')] == ["1"]
            assert ask(f'sum(clusterctl_samples_per_second{{job="{job}"}}) > 0')
    site.ok("stop", job)


@contextlib.contextmanager
def prometheus(directory: Path, target: str) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Run Prometheus with this target; yield a function that evaluates an expression."""
    scrape = {"job_name": "clusterctl", "honor_labels": True, "static_configs": [{"targets": [target]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
    (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
    ]

    def ask(query: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
        try:
            with urllib.request.urlopen(url, timeout=180) as reply:
                found: list[dict[str, Any]] = json.load(reply)["data"]["result"]
        except urllib.error.URLError:  # it is starting
            return []
        return found

    with (
        (directory / "log").open("w") as log,
        subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log) as process,
    ):
        try:
            yield ask
        finally:
            process.kill()
