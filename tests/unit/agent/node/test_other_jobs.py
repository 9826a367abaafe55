"""Jobs of other accounts are seen by the ports that they have claimed."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node import job_processes as other_jobs
from clusterctl.common.port_claims import claim, claimed_ports


def test_a_claimed_port_of_another_account_shows_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        claimed = claim(port)
        assert claimed is not None
        with claimed:
            assert port in claimed_ports()
            seen: list[Any] = []

            def holders(ports: Any, *, except_of: int) -> Any:
                assert except_of == os.getuid()
                seen.extend(ports)
                return [{"port": port, "uid": 4711, "pid": None, "name": None}]

            monkeypatch.setattr(other_jobs, "holders", holders)
            assert {"port": port, "uid": 4711} in other_jobs.other_jobs(tmp_path)
            assert port in seen
        assert port not in claimed_ports()
