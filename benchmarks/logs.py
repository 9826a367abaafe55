"""Measure how long a node takes to select lines of a large log, compared with tail, tac and grep on the same file.

The log is generated: lines of 100 bytes, 1,000 a second. "common" is in every 50th line, "rare" in the first three of
these.
`PYTHONPATH=older python benchmarks/logs.py` measures another tree. Times are wall-clock times of whole processes, the
best of three; the agent's include the start of Python.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from clusterctl.agent.node.log_files import LogWriter
from clusterctl.common.paths import JobPaths
from farm import options, scratch, show

JOB = "JOB20261121-081530"
LINES_PER_S = 1000
BLOCK = 50  # lines, written at once
SELECT = """
import json, os, sys
from pathlib import Path
from clusterctl.agent.operations.logs import logs
from clusterctl.agent.peer import Peer
logs(Path(sys.argv[1]), json.loads(sys.argv[2]), Peer(os.pipe()[0], os.open(os.devnull, os.O_WRONLY)))
"""


def make_log(root: Path, gigabytes: int) -> tuple[Path, float]:
    """Write a run with one process; return its log and the time of its end."""
    job = JobPaths(root / JOB)
    run = job.run("0001")
    for place in (run.dir, job.log):
        place.mkdir(parents=True)
    spec = {"job": JOB, "run": "0001", "node": 0, "t": 1.0, "mode": "sync", "engine": "none"}
    run.spec.write_text(json.dumps({**spec, "processes": [{"role": "trainer", "rank": 0, "index": 0}]}))
    run.state.write_text(json.dumps({"processes": [], "supervisor": None, "ended": None}))
    job.record.write_text(json.dumps({"job": JOB}))
    now = 1e9
    writer = LogWriter(job.log, "train", 1 << 60, lambda: now)
    for block in range((gigabytes << 30) // (100 * BLOCK)):
        words = ("rare " if block < 3 else "") + "common"
        writer.write(b"".join(line(block * BLOCK + n, "" if n else words) for n in range(BLOCK)))
        now += BLOCK / LINES_PER_S
    writer.close()
    return job.log / "train.log", now


def line(number: int, words: str) -> bytes:
    return f"step {number} loss {number % 997 / 997:.6f} {words}".ljust(99, ".").encode() + b"\n"


def best_s(command: list[str]) -> float:
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - begun)
    return min(times)


def main() -> None:
    arguments = options(__doc__ or "", gigabytes=1).parse_args()
    with scratch(arguments.dir) as directory:
        log, end = make_log(directory, arguments.gigabytes)
        cases = (
            ("--tail 10", {"tail": 10}, f"tail -n 10 {log}"),
            ("--tail 10 --grep common", {"tail": 10, "grep": "common"}, f"tac {log} | grep -m 10 common | tac"),
            ("--since (the last 10 s)", {"since": end - 10}, f"tail -n {10 * LINES_PER_S} {log}"),
            ("--since --tail --grep", {"since": end - 10, "tail": 10, "grep": "common"}, ""),
            ("--tail 10 --grep rare", {"tail": 10, "grep": "rare"}, f"grep rare {log} | tail -n 10"),
            ("--tail 10 --grep 'r[a]re'", {"tail": 10, "grep": "r[a]re"}, f"grep 'r[a]re' {log} | tail -n 10"),
            ("--grep rare", {"grep": "rare"}, f"grep rare {log} | cat"),
        )
        rows = []
        for name, wanted, peer in cases:
            request = json.dumps({"op": "logs", "ref": JOB, **wanted})
            ours = best_s([sys.executable, "-P", "-c", SELECT, str(directory), request])
            rows.append((name, peer.replace(str(log), "LOG"), f"{ours:.2f}", f"{best_s(['sh', '-c', peer]):.2f}"))
        show(("logs", "peer", "seconds", "peer's"), rows)


if __name__ == "__main__":
    main()
