"""The previous version, installed from a wheel of its commit, and the clusters that it brings up."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import re
import runpy
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.openssh import find_sshd
from support.places import ROOT
from support.processes import Proc, kill_all, processes_below, processes_with_environment
from support.site import Site

# The commit to upgrade from. To try another one: CLUSTERCTL_UPGRADE_FROM=REVISION make upgrade
COMMIT = os.environ.get("CLUSTERCTL_UPGRADE_FROM") or "035332af3cb03878c66da33746a02da2ca86e03f"
VERSION = f"0.0.0+before.{os.getpid()}"
BACKENDS = ("embedded", "ssh")
NODES = 3


def install(source: Path, target: Path) -> None:
    """Install the previous version into `target`; it runs with the dependencies of this environment.

    Its version number is changed so that its agent differs from that of this version and of other tests running on
    this machine, even if the code is the same.
    """
    with tarfile.open(fileobj=io.BytesIO(_archive(COMMIT))) as archive:
        archive.extractall(source)
    about = source / "clusterctl/__init__.py"
    text, changed = re.subn(r'(?m)^__version__ = ".*"$', f'__version__ = "{VERSION}"', about.read_text())
    assert changed == 1
    about.write_text(text)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    done = subprocess.run([*pip, *options, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _archive(commit: str) -> bytes:
    """Return a commit as a tar. If the history lacks it, skip the test, or fail it if CI is set."""
    try:
        done = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True, check=False)
        reason = done.stderr.decode(errors="replace").strip() if done.returncode else ""
    except FileNotFoundError:
        reason = "git is not installed"
    if reason:
        reason = f"needs a git checkout whose history has {commit} (git fetch --unshallow): {reason}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return done.stdout


@contextlib.contextmanager
def old_cluster(installed: Path, backend: str, directory: Path) -> Iterator[Site]:
    """Yield a site of this version: a fake cluster that the previous version brings up and this one takes down."""
    if backend == "ssh":
        find_sshd()
    fake = directory / "fake"
    (directory / "work").mkdir()
    site = Site(directory / "work", fake, [], {})
    old = old_site(site, installed)
    assert old.ok("--version").out == f"clusterctl {VERSION}\n"
    assert site.ok("--version").out != f"clusterctl {VERSION}\n"
    try:
        old.ok("fake", "up", "-n", str(NODES), "--backend", backend, "--dir", str(fake))
        conf = runpy.run_path(str(fake / "conf.py"))
        site.hosts = conf["HOSTS"]
        site.paths = {name: Path(conf[name]) for name in ("IDENTITY_FILE", "KNOWN_HOSTS", "SSH_CONFIG")}
        yield site
    finally:
        down = site.run("fake", "down", "--yes", "--dir", str(fake))
        left = processes_of(fake)
        kill_all(process.pid for process in left)
    assert (down.code, left) == (0, []), down.err


def old_site(site: Site, installed: Path) -> Site:
    """Return the same site for the previous version: its nodes, directory, conf.py and caches."""
    old = copy.copy(site)
    old.environment = {"PYTHONPATH": str(installed)}
    return old


def processes_of(fake: Path) -> list[Proc]:
    """Return the processes of a fake cluster, including its SSH servers."""
    return [*processes_with_environment("CLUSTERCTL_FAKE", str(fake)), *processes_below(fake)]
