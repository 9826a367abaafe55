"""The leftovers of a process are killed before it restarts, whatever it has done to its environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# A supervisor of one process, which overwrites its environment, starts another one in its session, and is killed.
SUPERVISES = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from clusterctl.agent.event_loop import EventLoop
from clusterctl.agent.supervisor.child import Child
from clusterctl.agent.supervisor.orphans import OrphanCleaner, reap_orphans
from clusterctl.common.paths import JobPaths
from clusterctl.common.procfs import adopt_orphans, identify, is_alive
from clusterctl.agent.supervisor.run_context import RunContext
from clusterctl.common.run_spec import ProcessSpec, RunSpec, Timing

place = Path(sys.argv[1])
loop, notes = EventLoop(), []
spec = RunSpec(job="JOB", run="0001", node=0, timing=Timing(grace_s=5.0))
never = lambda *_: False
context = RunContext(JobPaths(place).run("0001"), spec, loop, notes.append, never, never, never, never)
argv = (sys.executable, "-S", "-c", sys.argv[2])
plans = [ProcessSpec(role="trainer", rank=rank, index=rank, argv=argv) for rank in (0, 1)]
children = [Child(plan, loop, lambda *_: None, lambda *_: None) for plan in plans]
adopt_orphans()
for child in children:
    child.start(place, place, lambda fd: {"HELPER": str(place / child.name)}, 0.0)

def helpers():
    files = [place / child.name for child in children]
    if not all(file.exists() and file.read_text().endswith(".") for file in files):
        return loop.after(0.02, helpers)
    helpers.known = [identify(int(file.read_text()[:-1])) for file in files]
    loop.stop()

helpers()
loop.run()
os.kill(children[0].pid, signal.SIGKILL)
while not children[0].poll():
    pass
loop._stopped = False
loop.every(0.02, lambda: reap_orphans({child.pid for child in children if child.pid}))
OrphanCleaner(context, never).clear(loop.stop, children[:1])
loop.run()
print([is_alive(who) for who in helpers.known], len(notes))
for child in children:
    child.signal(signal.SIGKILL)
"""
CLOBBERS = """
import ctypes, os, signal
place = os.environ["HELPER"]
begin, end = map(int, open("/proc/self/stat").read().rpartition(")")[2].split()[47:49])
ctypes.memset(begin, 0, end - begin)
pid = os.fork()
if pid:
    with open(place, "w") as f:
        f.write(f"{pid}.")
signal.pause()
"""


def test_a_helper_without_environment_ends_only_with_the_process_in_whose_session_it_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUPERVISES, str(tmp_path), CLOBBERS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout == "[False, True] 1\n", done.stderr
