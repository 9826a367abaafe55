"""The program as a user of a cluster has it, on a login node; the nodes are those of one job of the laboratory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from real.slurm.lab import PATH, Lab
from support.site import Site


class SlurmSite(Site):
    """`job` is the Slurm job whose nodes are meant; those of the allocation that a command runs in if it is None."""

    def __init__(self, lab: Lab, directory: Path, job: str | None, nodes: int) -> None:
        self.lab, self.job = lab, job
        super().__init__(directory, directory / "root", [f"node{number}" for number in range(nodes)], {})
        self.environment = {"SLURM_CONF": str(lab.conf), "PATH": PATH}

    def conf(self, **settings: Any) -> Path:
        path = super().conf(PYTHON=sys.executable, ROOT_DIR=str(self.nodes_directory), **settings)
        path.write_text(f"{path.read_text()}HOSTS = slurm({self.job or ''})\n")
        return path

    def job_dir(self, job: str, node: int) -> Path:
        return self.nodes_directory / f"node{node}" / job
