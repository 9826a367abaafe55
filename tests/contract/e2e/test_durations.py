"""The duration of a run is the same in `start`, `status` and `why`, however late one asks."""

from __future__ import annotations

import re

import pytest

from support.site import Site

pytestmark = pytest.mark.nodes(1)


def test_every_command_shows_the_same_duration_and_why_the_exit_code(site: Site) -> None:
    site.conf(ENGINE="none", PSERVERS=0)
    program = "import sys, time; time.sleep(1.2); sys.exit(1)"
    started = site.run("start", "--job_dispatch_package", str(site.workspace(program)))
    assert started.code == 1
    found = re.search(r"failed after 00:00:(\d\d)", started.out + started.err)
    assert found is not None
    status, why = site.ok("status").out, site.ok("why").out
    assert f"· failed · 00:00:{found[1]}" in status
    assert f"failed after {int(found[1])} s" in why
    assert "exited with code 1" in why
