"""The duration of a run is the same in `start`, `status` and `why`, however late one asks."""

from __future__ import annotations

import re

import pytest

from support.site import Site

pytestmark = pytest.mark.nodes(2)


@pytest.mark.parametrize("code", [0, 1])
def test_every_command_shows_the_same_duration(site: Site, code: int) -> None:
    site.conf(ENGINE="none", PSERVERS=0)
    program = f"import sys, time; time.sleep(2.2); sys.exit({code})"
    started = site.run("start", "--job_dispatch_package", str(site.workspace(program)))
    assert started.code == code
    found = re.search(r"(succeeded|failed) after 00:00:(\d\d)", started.out + started.err)
    assert found is not None
    status, why = site.ok("status").out, site.ok("why").out
    assert f"· {found[1]} · 00:00:{found[2]}" in status
    assert f"{found[1]} after {int(found[2])} s" in why
