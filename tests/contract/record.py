"""Record what programs see of runs of every mode and engine: `python -m contract.record DIRECTORY`, in `tests/`.

For each scenario: the JSON documents of the commands, and of the nodes the files of runs, with marks in place of what
differs from run to run. `--tree` runs the clusterctl of another tree. `--compare OTHER` compares with an earlier
recording; the fields in VARY are left out. `--learn` adds the structure to recorded/structure.json, and that of the
messages between processes.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.documents import command_of, problems
from contract.messages import declared, documents, tapped
from contract.programs import OTHER, OUTER, REGRESSION
from contract.shapes import merged, misfits, normal, structure, without
from support.places import ROOT

KNOWN = Path(__file__).parent / "recorded/structure.json"
NODES = 2
AFTER = (
    *(("status", "{job}"), ("jobs",), ("why", "{job}"), ("logs", "{job}", "--tail", "2")),
    ("collect", "{job}", "-o", "collected"),
)
REPORTS = (
    *(("report", "{job}", "-o", "report.html"), ("export", "csv", "{job}", "--to", "csv")),
    *(
        ("export", "trace", "{job}", "--to", "trace"),
        ("diff", "{job}/1", "{job}/2"),
        ("prune", "--plan", "--keep", "0"),
    ),
)
AROUND = (
    *(("check",), ("trust", "--yes"), ("fake", "status", "--dir", "fake"), ("task", "--list")),
    *(("exec", "--", "echo hello"), ("split", "data.txt", "--count", "2"), ("init", "new"), ("task", "hello")),
    *(("dispatch", "workspace"), ("dispatch", "workspace"), ("start", "--job_workspace", "{job}", "--plan")),
)
ERRORS = (("status", "JOB20000101-000000"), ("start", "--job_workspace", "{job}", "--resume", "--only", "node9"))
TASKS = "from fabric import task\n\n@task\ndef hello(c):\n    c.run('echo hello')\n"


@dataclass(frozen=True)
class Scenario:
    """The job in `workspace` is dispatched and started with `arguments`, between the commands before and after it."""

    program: str = REGRESSION
    arguments: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    before: Sequence[tuple[str, ...]] = ()
    start: tuple[str, ...] = ("start", "--job_dispatch_package", "workspace")
    after: Sequence[tuple[str, ...]] = AFTER


def _engine(name: str) -> Scenario:
    settings = {"ENGINE": name, "PSERVER_COMMAND": "python train.py", "PSERVERS": 1}
    alone = name in ("none", "torch", "mpi", "tensorflow")
    return Scenario(OTHER, settings={"ENGINE": name} if alone else settings, after=AFTER[:3])


RESUME = ("start", "--job_workspace", "{job}", "--resume")
SCENARIOS = {
    "sync": Scenario(before=AROUND, after=(*AFTER, ("stop", "{job}"), RESUME, *REPORTS, *ERRORS)),
    "failed": Scenario(arguments=("fail",), after=(*AFTER, RESUME)),
    "killed": Scenario(arguments=("die",), settings={"RESTARTS": 2, "SAVE_EVERY": "4 steps"}),
    "stopped": Scenario(
        arguments=("wait",),
        settings={"MODE": "async", "KEEP_BEST": "score:max"},
        start=("start", "--job_dispatch_package", "workspace", "--detach"),
        after=(("save", "{job}"), *AFTER[:4], ("stop", "{job}"), *AFTER),
    ),
    "outer": Scenario(OUTER),
    "setup": Scenario(before=[("setup", "workspace")], after=()),  # needs a package index
    **{mode: Scenario(settings={"MODE": mode}) for mode in ("async", "half-async", "ssp(2)", "geo(3)")},
    **{engine: _engine(engine) for engine in ("none", "torch", "mpi", "paddle", "dmlc", "tensorflow")},
}
#: The commands whose documents are also compared with recorded ones: nodes and runs have keys that others lack.
AND_RECORDED = ("check", "start", "status")
#: Files of a job, below ROOT_DIR of a node.
FILES = (
    *("job.json", "runs/*/spec.json", "runs/*/state.json", "runs/*/peers.json", "runs/*/events.jsonl"),
    *("runs/*/checkpoints/*/manifest.json", "runs/*/copies/*/manifest.json", "../output/*/manifest.json"),
)
#: Events that come now and then, or not at all: two recordings are compared without them.
OFTEN = ("step", "usage", "log", "warning", "copied", "copying")
#: Fields that differ between two recordings of one tree: how often a process reports, what was sampled, and when.
VARY = (
    "warnings",
    "seconds",
    "curves",
    "losses",
    "cpu",
    "memory",
    "busy",
    "findings",
    "leftovers",
    "behind",
    "copied",
    "points",
    "staleness",
    "count",
    "line",
)


class Recorder:
    """A fake cluster of a tree, with one workspace; everything it records goes below `target`."""

    def __init__(self, directory: Path, target: Path, scenario: Scenario, tree: Path) -> None:
        self._directory, self._target, self._scenario, self._tree = directory, target, scenario, tree
        self._numbers = itertools.count(1)
        self.values: dict[str, list[Any]] = defaultdict(list)

    def record(self) -> None:
        self._target.mkdir(parents=True)
        self._run("fake", "up", "-n", str(NODES), "--dir", "fake")
        try:
            self._prepare()
            for words in self._scenario.before:
                self._run(*words)
            self._run(*self._scenario.start, "--", *self._scenario.arguments)
            for words in self._scenario.after:
                self._run(*words)
            self._take_files()
        finally:
            self._run("stop", "{job}")
            self._run("fake", "down", "--dir", "fake", "--yes")

    def _prepare(self) -> None:
        (self._directory / "workspace").mkdir()
        (self._directory / "workspace/train.py").write_text(self._scenario.program)
        (self._directory / "data.txt").write_text("1\n2\n3\n4\n")
        (self._directory / "fake/tasks.py").write_text(TASKS)
        settings = {"GRACE_S": 5, "RESTARTS": 0, **self._scenario.settings}
        with (self._directory / "fake/conf.py").open("a") as conf:
            conf.writelines(f"{name} = {value!r}\n" for name, value in settings.items())

    def _run(self, *words: str) -> None:
        jobs = sorted(path.name for path in self._directory.glob("fake/nodes/node0/clusterctl/JOB*"))
        if not jobs and any("{job}" in word for word in words):
            return
        argv = [word.format(job=jobs[-1] if jobs else "") for word in words]
        argv = [*argv[: argv.index("--")], "--json", *argv[argv.index("--") :]] if "--" in argv else [*argv, "--json"]
        env = {**os.environ, "PYTHONPATH": str(self._tree), "CLUSTERCTL_CONF": str(self._directory / "fake/conf.py")}
        env |= {"XDG_CACHE_HOME": str(self._directory / "cache"), "COLUMNS": "120"}
        command = [sys.executable, "-m", "clusterctl", *argv]
        done = subprocess.run(
            command, cwd=self._directory, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        documents = list(_documents(done.stdout))
        name = " ".join(words[:2]) if words[0] == "fake" else words[0]
        for document in documents:
            kind = f" {document['event']}" if "event" in document else " error" if "error" in document else ""
            self.values[name + kind].append(document)
        number = next(self._numbers)
        documents.sort(key=_origin)
        self._write(f"{number:02d}-{name.replace(' ', '-')}.json", [{"exit": done.returncode}, *documents])

    def _take_files(self) -> None:
        for node in range(NODES):
            base = self._directory / f"fake/nodes/node{node}/clusterctl"
            for meta in sorted(base.glob("JOB*/.clusterctl")):
                for path in sorted(path for pattern in FILES for path in meta.glob(pattern)):
                    values = list(_documents(path.read_text()))
                    name = os.path.relpath(path, meta).replace("../", "").replace("/", "-")
                    for value in values:
                        kind = f" {value['event']}" if path.name == "events.jsonl" else ""
                        place = path.parent.parent.name if path.name == "manifest.json" else ""
                        self.values[f"{place} {path.name}{kind}".strip()].append(value)
                    self._write(f"node{node}-{name}", _by_process(values) if "events" in name else values)

    def _write(self, name: str, values: list[Any]) -> None:
        (self._target / name).write_text(json.dumps(normal(values), ensure_ascii=False, indent=1) + "\n")


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """Yield the documents of an output: one, or one in each line."""
    try:
        yield json.loads(text)
    except ValueError:
        yield from (json.loads(line) for line in text.splitlines() if line.startswith("{"))


def _by_process(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events by process, and of those that a process sends all the time the first one."""
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, event in enumerate(sorted(events, key=_origin)):
        kept.setdefault((event["event"], _origin(event), 0 if event["event"] in OFTEN else number), event)
    return list(kept.values())


def _origin(document: dict[str, Any]) -> tuple[Any, ...]:
    """Return what sorts the lines of a stream by process: those of several come in any order; saves, at any time."""
    saved = f"{document['tag']} {document['event']}" if document.get("event") in ("saved", "copied", "copying") else ""
    return document.get("node", NODES), str(document.get("role")), str(document.get("rank")), saved


def record(names: Sequence[str], target: Path, tree: Path = ROOT) -> dict[str, list[Any]]:
    """Record scenarios into an empty directory, and return the documents of each kind."""
    values: dict[str, list[Any]] = defaultdict(list)
    for name in names:
        if name == "outer" and importlib.util.find_spec("torch") is None:
            continue
        with tempfile.TemporaryDirectory() as directory:
            messages = Path(directory, "messages")
            copy = tapped(tree, Path(directory, "tree"), messages)
            recorder = Recorder(Path(directory), target / name, SCENARIOS[name], copy)
            recorder.record()
            for kind, message in documents(messages):
                values[kind].append(message)
        for kind, found in recorder.values.items():
            values[kind] += found
    return values


def structures(values: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the structure of each kind of document, except those whose declaration says as much."""
    kinds = (kind for kind in sorted(values) if command_of(kind) in (None, *AND_RECORDED))
    return {kind: structure(values[kind]) for kind in kinds}


def misdeclared(values: dict[str, list[Any]]) -> list[str]:
    """Return what of the documents of commands is not as declared. Events of a run are not documents of a command."""
    pairs = ((kind, command_of(kind), value) for kind, found in sorted(values.items()) for value in found)
    return [
        f"{kind}: {problem}"
        for kind, command, value in pairs
        if command is not None and "event" not in value
        for problem in problems(command, value)
    ]


def unknown(found: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """Return the differences of recorded structures from the known ones."""
    fits = (misfits(one, known[kind], kind) if kind in known else [f"{kind}: new"] for kind, one in found.items())
    return [line for lines in fits for line in lines]


def differences(a: Path, b: Path) -> list[str]:
    """Return the first difference of each file, without the fields in VARY, of the scenarios that both recorded."""
    both = [one.name for one in a.iterdir() if (b / one.name).is_dir()]
    names = sorted(
        {path.relative_to(top).as_posix() for top in (a, b) for one in both for path in (top / one).iterdir()}
    )
    pairs = ((name, _compared(a / name), _compared(b / name)) for name in names)
    return [f"{name}: {_first(one, other)}" for name, one, other in pairs if one != other]


def _compared(path: Path) -> list[str]:
    values = json.loads(path.read_text()) if path.exists() else ["missing"]
    always = [value for value in values if not (isinstance(value, dict) and value.get("event") in OFTEN)]
    return json.dumps(without(always, VARY), ensure_ascii=False, indent=1).splitlines()


def _first(one: list[str], other: list[str]) -> str:
    pairs = itertools.zip_longest(one, other, fillvalue="nothing")
    return next(f"line {n}: {x.strip()} | {y.strip()}" for n, (x, y) in enumerate(pairs, 1) if x != y)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="contract.record", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--learn", action="store_true")
    chosen = parser.parse_args(arguments)
    shutil.rmtree(chosen.directory, ignore_errors=True)
    values = record(chosen.scenarios, chosen.directory, chosen.tree)
    found = structures(values)
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    if chosen.learn:
        for kind, one in (*declared().items(), *found.items()):
            known[kind] = merged(known[kind], one) if kind in known else one
        KNOWN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    lines = [*misdeclared(values), *([] if chosen.learn else unknown(found, known))]
    lines += differences(chosen.compare, chosen.directory) if chosen.compare else []
    print("\n".join(lines) or "as before")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
