"""A job of Slurm from submission to long after its end, seen from outside it. Slurm's commands are played by scripts.

`queue` is what squeue prints about job 12, or the words with which it fails; srun runs commands on this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterctl.common.files import read_json, write_json
from clusterctl.common.procfs import identify
from support import forked

UNKNOWN = "slurm_load_jobs error: Invalid job id specified"
TIMES = "2026-11-23T21:38:05|2026-11-23T22:38:05|2:00:00"
TRAIN = 'import os\n\nprint("trained", os.environ["CLUSTERCTL_RANK"], flush=True)\n'
SRUN = """\
#!/bin/sh
while [ "${1##*/}" != sh ]; do
  [ "$1" = -w ] && node=$2
  shift
done
[ -n "$node" ] && SLURMD_NODENAME=$node exec "$@"
for node in n1 n2; do
  if [ -e DIR/blind ] && [ "$node" = n2 ]; then echo n2; else SLURMD_NODENAME=$node "$@"; fi
done
"""
SQUEUE = """case "$*" in *%A*) cat DIR/alive 2>/dev/null; exit 0 ;; esac
if grep -q error DIR/queue; then cat DIR/queue >&2; exit 1; fi; cat DIR/queue"""
SCONTROL = """\
case "$1 $2 $3" in
"show hostnames "*) printf 'n1\\nn2\\n' ;;
"show node "*)
  host=$(cat DIR/elsewhere 2>/dev/null || hostname)
  for n in n1 n2; do echo "NodeName=$n x=y NodeAddr=127.0.0.1 NodeHostName=$host z=z"; done ;;
"show job -d") printf ' NtasksPerN:B:S:C=0:0:*:* \\n     Nodes=n[1-2] CPU_IDs=0-3 Mem=1 GRES=\\n' ;;
"show job "*) echo '   StdOut=DIR/the output.log' ;;
esac
"""


def in_queue(state: str, reason: str = "None", status: int = 0, *, nodes: str = "n[1-2]", restarts: int = 0) -> str:
    return f"12|N/A|{state}|{reason}|2|2|1|{status}|{TIMES}|{restarts}|{nodes}|"


@dataclass
class Played:
    """A directory with conf.py and a workspace, and a Slurm that says what `says` was given last."""

    directory: Path

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "CLUSTERCTL"))}
        return {**kept, "PATH": f"{self.directory}/bin:{kept['PATH']}", "HOME": str(self.directory)}

    def program(self, name: str, text: str) -> None:
        path = self.directory / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("DIR", str(self.directory)))
        path.chmod(0o755)

    def says(self, queue: str) -> None:
        (self.directory / "queue").write_text(f"{queue}\n")

    def run(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "clusterctl", *argv]
        return forked.run(command, cwd=self.directory, env={**self.environ, **variables})

    def output(self, *argv: str, code: int = 0) -> str:
        done = self.run(*argv)
        assert done.returncode == code, done
        return " ".join((done.stdout + done.stderr).split())

    def json(self, *argv: str) -> Any:
        return json.loads(self.run(*argv, "--json").stdout)

    def submit(self) -> dict[str, Any]:
        document: dict[str, Any] = self.json("submit", "work", "--nodes", "2")
        return document

    def run_script(self, restarts: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the script of the job as Slurm would, on this machine; its output goes where Slurm would write it."""
        variables = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "2", "SLURM_RESTART_COUNT": str(restarts)}
        with (self.directory / "the output.log").open("ab") as output:
            return subprocess.run(
                ["sh", str(self.directory / "script")],
                env={**self.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=120,
                check=False,
                text=True,
            )


def made(directory: Path) -> Played:
    played = Played(directory)
    played.program("sbatch", "#!/bin/sh\ncat > DIR/script; echo 12\n")
    played.program("squeue", f"#!/bin/sh\n{SQUEUE}\n")
    played.program("scontrol", f"#!/bin/sh\n{SCONTROL}")
    played.program("srun", SRUN)
    played.program("sacct", "#!/bin/sh\nexit 1\n")
    cancelled = in_queue("CANCELLED", nodes="")
    played.program("scancel", f"#!/bin/sh\necho \"$@\" >> DIR/scancel; echo '{cancelled}' > DIR/queue\n")
    (directory / "conf.py").write_text(
        f"HOSTS = slurm()\nROOT_DIR = '{directory}/root'\nPYTHON = '{sys.executable}'\nPSERVERS = 0\n"
    )
    (directory / "work").mkdir()
    (directory / "work/train.py").write_text(TRAIN)
    return played


@pytest.fixture
def slurm(tmp_path: Path) -> Played:
    return made(tmp_path)


@pytest.fixture(scope="module")
def succeeded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Played, Path]:
    """A job whose run has succeeded and whose script has ended, and a copy of all its files."""
    played = made(tmp_path_factory.mktemp("job"))
    played.says(in_queue("RUNNING"))
    played.submit()
    assert played.run_script().returncode == 0, (played.directory / "the output.log").read_text()
    return played, Path(shutil.copytree(played.directory, tmp_path_factory.mktemp("copy") / "all", symlinks=True))


@pytest.fixture
def ended(succeeded: tuple[Played, Path]) -> Played:
    """That job, with its files as they were then."""
    played, copy = succeeded
    shutil.rmtree(played.directory)
    shutil.copytree(copy, played.directory, symlinks=True)
    played.says(in_queue("COMPLETED"))
    return played


def records(slurm: Played) -> Path:
    return slurm.directory / "root/.clusterctl/slurm"


def test_submit_prints_the_job_and_what_to_do_next(slurm: Played) -> None:
    said = slurm.output("submit", "work", "--nodes", "2", "--time", "1:00:00")
    assert said.startswith("submitted: Slurm job 12 2 nodes, time limit 1:00:00")
    assert f"{slurm.directory}/the output.log" in said
    assert "next: clusterctl status 12" in said
    assert (records(slurm) / "12/submission.json").is_file()


def test_the_document_of_submit(slurm: Played) -> None:
    document = slurm.submit()
    assert (document["to"], document["id"], document["run"]) == ("slurm", "12", "slurm-12")
    assert document["output"] == f"{slurm.directory}/the output.log"
    assert document["script"] == (slurm.directory / "script").read_text()


def test_what_slurm_refuses_leaves_no_record(slurm: Played) -> None:
    slurm.program("sbatch", "#!/bin/sh\necho 'sbatch: error: Invalid qos specification' >&2; exit 1\n")
    said = slurm.output("submit", "work", code=2)
    assert said.startswith("sbatch refused the job: Invalid qos specification")
    assert list(records(slurm).iterdir()) == []


def test_a_root_dir_that_cannot_be_written_is_refused(slurm: Played) -> None:
    (slurm.directory / "root").write_text("a file")
    assert "cannot write to ROOT_DIR" in slurm.output("submit", "work", code=2)
    assert not (slurm.directory / "script").exists()


def test_a_root_dir_in_memory_is_refused_unless_all_nodes_are_here(slurm: Played) -> None:
    text = (slurm.directory / "conf.py").read_text().replace(f"{slurm.directory}/root", "/dev/shm/clusterctl-test")
    (slurm.directory / "conf.py").write_text(text)
    (slurm.directory / "elsewhere").write_text("n1")
    assert "is in the memory of this machine (tmpfs)" in slurm.output("submit", "work", code=4)
    assert not Path("/dev/shm/clusterctl-test").exists()


def test_a_queued_job_is_shown_with_the_reason_of_slurm(slurm: Played) -> None:
    slurm.submit()
    slurm.says(in_queue("PENDING", "Resources", nodes=""))
    sentence = "Slurm job 12 is queued: waiting for free nodes (Resources)"
    for command, *job in (["status"], ["status", "12"], ["why", "slurm-12"]):
        assert sentence in slurm.output(command, *job)
    document = slurm.json("status")
    assert (document["job"], document["state"], document["scheduler"]["stage"]) == (None, "queued", "queued")
    for command in ("logs", "collect"):
        assert sentence in slurm.output(command, code=3)


def test_stop_cancels_a_queued_job(slurm: Played) -> None:
    slurm.submit()
    slurm.says(in_queue("PENDING", "Resources", nodes=""))
    assert slurm.output("stop", "12") == "cancelled: Slurm job 12, which was queued"
    assert (slurm.directory / "scancel").read_text() == "--state=PENDING 12\n"
    assert "nothing to stop: Slurm job 12 has ended: it was cancelled" in slurm.output("stop")
    assert slurm.output("status") == "Slurm job 12 has ended: it was cancelled (scancel)"  # its script printed nothing


def test_a_job_that_has_begun_has_no_run_at_first(slurm: Played) -> None:
    slurm.submit()
    slurm.says(in_queue("RUNNING"))
    said = slurm.output("status")
    assert "Slurm job 12 is running" in said
    assert "its run has not begun yet" in said
    assert "but its run has not begun yet" in slurm.output("collect", code=3)
    assert slurm.output("stop") == "cancelled: Slurm job 12, which had not begun its run"
    assert (slurm.directory / "scancel").read_text() == "12\n"


@pytest.mark.slow
def test_a_job_that_has_ended_is_read_from_root_dir(ended: Played) -> None:
    ended.program("srun", "#!/bin/sh\necho 'srun: error: no allocation' >&2; exit 1\n")
    status = ended.json("status")
    assert (status["state"], status["name"]) == ("succeeded", "slurm-12")
    assert status["scheduler"]["kind"] == "succeeded"
    assert [process["state"] for process in status["processes"]] == ["succeeded"] * 2
    assert "trained 1" in ended.output("logs", status["job"])
    assert "trained 0" in ended.output("logs", "-f", "12")
    assert "succeeded" in ended.output("why", "slurm-12")
    assert "collected" in ended.output("collect", "-o", "here")
    assert (ended.directory / "here/node-1/log/train.log").read_text() == "trained 1\n"
    assert "nothing to stop" in ended.output("stop")
    ended.says(UNKNOWN)
    assert "does not know job 13" in ended.output("status", "13", code=2)


def without_an_end(ended: Played, **spec: Any) -> None:
    """Make the record that of a run whose processes seem to be alive: elsewhere a pid may be that of any process."""
    me = identify(os.getpid())
    for state in (ended.directory / "root").glob("node*/JOB*/.clusterctl/runs/0001/state.json"):
        known = read_json(state)
        alive = [{**process, "state": "running", "identity": me} for process in known["processes"]]
        write_json(state, {**known, "ended": None, "phase": "running", "supervisor": me, "processes": alive})
        write_json(state.with_name("spec.json"), {**read_json(state.with_name("spec.json")), **spec})


@pytest.mark.slow
def test_commands_that_compare_export_and_list_read_ended_jobs_in_root_dir(ended: Played) -> None:
    ended.program("srun", "#!/bin/sh\necho 'srun: error: no allocation' >&2; exit 1\n")
    (job,) = ended.json("jobs")["jobs"]
    assert (job["state"], job["nodes"], job["runs"][0]["name"]) == ("succeeded", [0, 1], "slurm-12")
    assert ended.output("diff", "12", f"{job['job']}/1").count("succeeded") == 2
    ended.output("export", "there", "12", "--to", "csv")
    assert (ended.directory / "there").is_dir()
    assert "Slurm job 12 has ended: it succeeded" in ended.output("save", "12", code=3)
    command = [sys.executable, "-m", "clusterctl", "metrics", "12", "--listen", "127.0.0.1:0", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ended.directory, env=ended.environ, stdout=pipe, stderr=pipe) as server:
        assert server.stdout is not None
        try:
            with urllib.request.urlopen(json.loads(server.stdout.readline())["url"], timeout=30) as answer:
                assert f'job="{job["job"]}"' in answer.read().decode()
        finally:
            server.kill()


def test_jobs_asks_slurm_about_runs_that_recorded_no_end(ended: Played) -> None:
    without_an_end(ended)
    assert ended.json("jobs")["jobs"][0]["state"] == "lost"
    (ended.directory / "alive").write_text("7\n12\n")
    assert ended.json("jobs")["jobs"][0]["state"] == "running"
    for life in list((ended.directory / "root").glob("node*/JOB*")):
        shutil.copytree(life, f"{life}-2", symlinks=True)
    assert [job["state"] for job in ended.json("jobs")["jobs"]] == ["running", "lost"]
    without_an_end(ended, name="by-hand")
    assert ended.json("jobs")["jobs"][0]["state"] == "unknown"


def test_jobs_lists_what_waits_in_the_queue(slurm: Played) -> None:
    slurm.submit()
    foreign = in_queue("PENDING", "Priority", nodes="").replace("12|", "11|", 1)
    slurm.says("\n".join([foreign, in_queue("PENDING", "Resources", nodes="")]))
    assert slurm.output("jobs") == "Slurm job 12 is queued: waiting for free nodes (Resources)"
    document = slurm.json("jobs")
    assert (document["jobs"], [job["id"] for job in document["queued"]]) == ([], ["12"])
    slurm.says("slurm_load_jobs error: Unable to contact slurm controller")
    assert slurm.output("jobs") == "no jobs; clusterctl submit hands one to Slurm"


def test_slurm_and_not_a_pid_says_whether_an_ended_job_lives(ended: Played) -> None:
    without_an_end(ended)
    ended.says(in_queue("TIMEOUT"))
    status = ended.json("status")
    assert status["state"] == "lost"
    assert {process["state"] for process in status["processes"]} == {"lost"}
    assert "first cause: Slurm job 12: it reached its time limit of 2:00:00" in ended.output("why")
    assert "is lost" in ended.output("logs", "-f", code=1)
    ended.says(in_queue("RUNNING"))
    assert ended.json("status")["state"] == "running"


def test_a_job_that_ends_while_its_nodes_are_asked_for_is_read_in_root_dir(ended: Played) -> None:
    begins = f"[ -e DIR/asked ] || {{ touch DIR/asked; echo '{in_queue('RUNNING')}'; exit 0; }}"
    ended.program("squeue", f"#!/bin/sh\n{begins}\n{SQUEUE}\n")
    ended.says(in_queue("TIMEOUT"))
    assert "Slurm job 12 has ended: it reached its time limit of 2:00:00" in ended.output("status")


def test_what_was_learned_is_known_after_slurm_forgets(ended: Played) -> None:
    ended.says(in_queue("PREEMPTED"))
    ended.output("status")
    ended.says(UNKNOWN)
    assert "Slurm job 12 has ended: it was preempted by another job" in ended.output("status")


def test_the_words_in_the_output_count_when_nobody_asked_in_time(ended: Played) -> None:
    output = ended.directory / "the output.log"
    with output.open("a") as f:
        f.write("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-23T22:38:05 DUE TO TIME LIMIT ***\n")
    ended.says(UNKNOWN)
    assert "Slurm job 12 has ended: it reached its time limit" in ended.output("status")
    output.write_text("")
    assert "as Slurm has forgotten it" in ended.output("status")


def test_a_node_that_does_not_see_the_mark_is_named(slurm: Played) -> None:
    slurm.submit()
    slurm.says(in_queue("RUNNING"))
    (slurm.directory / "blind").touch()
    assert slurm.run_script().returncode == 4
    slurm.says(in_queue("FAILED", "NonZeroExitCode", 4 << 8))
    said = slurm.output("status")
    assert "Slurm job 12 has ended: ROOT_DIR is not shared: n2 cannot see" in said
    assert "set ROOT_DIR to a directory that this machine shares with the nodes" in slurm.output("why")
    assert not (slurm.directory / "root/node0").exists()


def test_a_script_that_fails_before_its_run_is_explained_by_what_it_printed(slurm: Played) -> None:
    slurm.submit()
    (slurm.directory / "the output.log").write_text("conf.py:3: PROT is not a setting\n")
    slurm.says(in_queue("FAILED", "NonZeroExitCode", 2 << 8))
    said = slurm.output("why")
    assert "its script failed with exit code 2" in said
    assert "| conf.py:3: PROT is not a setting" in said
