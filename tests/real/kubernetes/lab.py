"""A stand-in for a cluster, and kubectl and clusterctl as a user has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.schedulers.kubernetes.manifest import ManifestOptions
from real.kubernetes.cluster import Cluster
from real.kubernetes.server import serving
from support import forked
from support.processes import processes_with_environment, wait_until
from support.site import Result

HOSTS = 'kubernetes("app=train")'
IMAGE = "registry.example.org/train:1"
SUBMISSION = ManifestOptions("0a1b2c3d", "train-0a1b2c3d", IMAGE, 11, {"app": "train"})


@dataclass
class Lab:
    """`directory` has the conf.py and the workspaces. `environment` is that of each call."""

    directory: Path
    cluster: Cluster
    environment: dict[str, str] = field(default_factory=dict)

    def conf(self, hosts: str = HOSTS, **settings: Any) -> None:
        """Write a conf.py with short grace periods, no restarts and no copies of models, and `settings`."""
        values = {"PYTHON": sys.executable, "GRACE_S": 2, "RESTARTS": 0, "ENV": {"OPENBLAS_NUM_THREADS": "1"}}
        values |= {"COPIES": 1, "MODEL_ON_LEAD_MB": 0}
        lines = [f"{name} = {value!r}\n" for name, value in {**values, **settings}.items()]
        (self.directory / "conf.py").write_text("".join([f"HOSTS = {hosts}\n", *lines]))

    def workspace(self, train: str) -> str:
        """Make a workspace with this train.py."""
        path = self.directory / "workspace"
        path.mkdir(exist_ok=True)
        (path / "train.py").write_text(train)
        return "workspace"

    def run(self, *args: str, timeout_s: float = 150, **variables: str) -> Result:
        return self._call((sys.executable, "-m", "clusterctl", *args), timeout_s, variables)

    def ok(self, *args: str, **variables: str) -> Result:
        result = self.run(*args, **variables)
        assert result.code == 0, f"{args}: exit {result.code}\n{result.out}\n{result.err}"
        return result

    def kubectl(self, *args: str) -> Result:
        return self._call(("kubectl", *args), 60, {})

    def popen(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        command = (sys.executable, "-m", "clusterctl", *args)
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return forked.popen(command, cwd=self.directory, env=self.environment, **streams, **options)

    def submit(self, train: str, *options: str, nodes: int = 2) -> str:
        """Submit a job, and return its id."""
        package = self.workspace(train)
        done = self.ok(
            "submit", package, "--to", "kubernetes", "--nodes", str(nodes), "--image", IMAGE, "--json", *options
        )
        job: str = json.loads(done.out)["job"]
        return job

    def status(self, job: str) -> Any:
        return self.run("status", job, "--json").json()

    def pods(self, namespace: str = "default") -> list[dict[str, Any]]:
        return self.cluster.list("pods", namespace)

    def address(self, name: str) -> str | None:
        """Return the address of a pod that is ready, None while there is none."""
        found = [pod for pod in self.pods() if pod["metadata"]["name"] == name]
        return next((pod.get("status", {}).get("podIP") for pod in found), None)

    def home(self, pod: dict[str, Any]) -> Path:
        """Return the home directory of a pod, on its disk if it has one."""
        meta = pod["metadata"]
        disk = self.directory / "cluster/disks" / meta["namespace"] / f"disk-{meta['name']}"
        return (disk if disk.exists() else self.directory / "cluster/pods" / meta["uid"] / "disk") / "home"

    def job_dir(self, job: str, node: int = 0) -> Path:
        return self.home(self.pods()[node]) / "clusterctl" / job

    def events(self, job: str) -> str:
        """Return the events of the first run, as node 0, the lead, has recorded them."""
        return (self.job_dir(job) / ".clusterctl/runs/0001/events.jsonl").read_text()

    def await_end(self, job: str) -> None:
        """Wait until the first run has ended, on all nodes. Cheaper than `status` again and again."""
        assert wait_until(lambda: '"event":"ended"' in self.events(job), 100), self.run("why", job).out
        assert wait_until(lambda: not processes_with_environment("CLUSTERCTL_JOB", job))

    def is_empty(self) -> bool:
        """Return True if nothing is left in the cluster, but events."""
        kinds = ("statefulsets", "services", "pods", "persistentvolumeclaims")
        return not any(self.cluster.list(kind, space) for kind in kinds for space in ("default", "research"))

    def _call(self, command: tuple[str, ...], timeout_s: float, variables: dict[str, str]) -> Result:
        environment = {**self.environment, **variables}
        done = forked.run(command, cwd=self.directory, env=environment, errors="replace", timeout=timeout_s)
        return Result(done.returncode, done.stdout, done.stderr)


@contextmanager
def kubernetes(directory: Path, program: Path) -> Iterator[Lab]:
    """Serve a cluster below `directory`, and end all its pods afterwards."""
    cluster = Cluster(directory / "cluster")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CLUSTERCTL_", "KUBE"))}
    path = f"{program.parent}:{kept['PATH']}"
    with serving(cluster, directory) as config:
        ours = {"KUBECONFIG": str(config), "KUBECACHEDIR": str(directory / "cache"), "PATH": path, "COLUMNS": "120"}
        lab = Lab(directory, cluster, {**kept, **ours, "XDG_CACHE_HOME": str(directory / "cache")})
        lab.conf()
        try:
            yield lab
        finally:
            cluster.forbidden.clear()
            cluster.close()
            assert wait_until(lambda: not cluster.list("pods", "default"))
