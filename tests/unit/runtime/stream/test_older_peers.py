"""A pserver or a trainer of the last version whose sealed streams were others: both ends stay with CURVE."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from support.places import ROOT
from unit.runtime.cluster import Process, make_job

#: The last commit whose keys do not depend on rank and lane.
COMMIT = "035332af"
PSERVER = "import runpy; runpy.run_module('clusterctl.runtime.pserver', run_name='__main__')"
TRAINER = """
import hashlib
import time
import numpy as np
from clusterctl.runtime import Adagrad, connect, uniform

with connect() as ps:
    w = ps.dense("w", 100_000, Adagrad(0.1), uniform(0.5))
    link = ps._client._link
    end_s = time.monotonic() + 60
    while link._carriers.openings and time.monotonic() < end_s:
        w.pull()
    for n in ps.steps(lambda pass_, rng: range(4), passes=1):
        ps.push({w: np.sin(w.value * (n + 1))}, samples=1)
    streams = [type(one.carrier._stream).__name__ for one in link._connections.values()]
    print("=", hashlib.sha256(w.pull().tobytes()).hexdigest(), *streams)
"""


def run(root: Path, pserver: Path | None, trainer: Path | None) -> list[str]:
    """Train with the code in these directories (None: this version); return the digest and the kind of each stream."""
    make_job(root, 1, 1, security="curve", shm="off", ports_num=2)
    programs = {
        role: f"import sys; sys.path.insert(0, {str(code)!r})\n{program}" if code else program
        for role, code, program in (("pserver", pserver, PSERVER), ("trainer", trainer, TRAINER))
    }
    server = Process(root, "pserver", 0, ["-c", programs["pserver"]], ())
    try:
        address = f"127.0.0.1:{server.until('ready')['ports'][0]}"
        client = Process(root, "trainer", 0, ["-c", programs["trainer"]], (address,))
        try:
            status, out, err = client.wait()
        finally:
            client.reap()
        assert status == 0, (out, err)
        server.send("finish")
        status, _, err = server.wait()
        assert (status, "refused" in err) == (0, False), err
        [line] = [line for line in out.splitlines() if line.startswith("=")]
        return line.split()[1:]
    finally:
        server.reap()


@pytest.mark.upgrade
def test_an_older_peer_refuses_the_stream_and_stays_with_curve(tmp_path: Path) -> None:
    archive = subprocess.run(["git", "archive", COMMIT, "clusterctl"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(tmp_path / "old")
    old = tmp_path / "old"
    results = {
        (new_pserver, new_trainer): run(
            tmp_path / f"{new_pserver}-{new_trainer}", None if new_pserver else old, None if new_trainer else old
        )
        for new_pserver in (True, False)
        for new_trainer in (True, False)
    }
    [digest] = {result[0] for result in results.values()}
    assert results == {
        (True, True): [digest, "SealedStream", "SealedStream"],
        (False, False): [digest, "SealedStream", "SealedStream"],
        (True, False): [digest, "NoneType", "NoneType"],
        (False, True): [digest, "NoneType", "NoneType"],
    }
