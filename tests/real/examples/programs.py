"""The examples as a user has them: copies, with a test's HOSTS in their conf.py."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.places import ROOT
from support.site import GRACE_S, Site

EXAMPLES = ROOT / "examples"
PACKAGES_S = 240.0
NO_INDEX = re.compile(r"could not reach a package index|No matching distribution|Could not find a version")


def copy(site: Site, name: str, hosts: int, **settings: Any) -> Path:
    """Copy an example into the site's directory; its conf.py becomes the site's, with the first hosts of the site."""
    directory = site.directory / name
    shutil.copytree(EXAMPLES / name, directory)
    site.conf_path = directory / "conf.py"
    values = {"HOSTS": site.hosts[:hosts], "GRACE_S": GRACE_S, **site.paths, **settings}
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
    with site.conf_path.open("a") as conf:
        conf.writelines(f"{key} = {value!r}\n" for key, value in plain.items())
    return directory


def set_up(site: Site, directory: Path) -> None:
    """Install the example's packages on the nodes, using the user's cache; skip if no index provides them in time."""
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    command = ("setup", "--offline", str(directory / "workspace"))
    try:
        result = site.run(*command, timeout_s=PACKAGES_S, env={"XDG_CACHE_HOME": cache})
    except AssertionError:
        pytest.skip(f"its packages were not there within {PACKAGES_S:.0f} s")
    if result.code and NO_INDEX.search(result.err):
        pytest.skip(f"no package index gives its packages: {result.err}")
    assert result.code == 0, result.err


def newest_job(site: Site) -> str:
    job: str = site.ok("jobs", "--json").json()["jobs"][0]["job"]
    return job


def losses(text: str, process: str) -> list[float]:
    """Return the losses that a process printed after each pass, in order."""
    values = [float(loss) for loss in re.findall(rf"{process} of \d+, pass \d+: loss ([\d.]+)", text)]
    assert values, text
    return values
