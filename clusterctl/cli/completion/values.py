"""The candidates for the value of an option or an argument, by its kind in `table.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from clusterctl.cli.completion.known import Known
from clusterctl.common.paths import job_key

FILES = {"file": "files", "dir": "dirs", "target": "dirs", "none": "none"}


class Values:
    """Values of the kinds in `words` and `settings`, which are the same everywhere, and of what is `known`."""

    def __init__(
        self,
        words: Mapping[str, Mapping[str, str]],
        settings: Mapping[str, Mapping[str, Any]],
        known: Known,
        options: Mapping[str, str],
    ) -> None:
        self._words = words
        self._settings = settings
        self._known = known
        self._options = options

    def of(self, kind: str, typed: str, arguments: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
        """Return which files may also be meant, and the values that begin with `typed`, with descriptions."""
        found = self._found(kind, typed, arguments)
        return FILES.get(kind, "none"), [(value, about) for value, about in found if value.startswith(typed)]

    def _found(self, kind: str, typed: str, arguments: Sequence[str]) -> Iterable[tuple[str, str]]:
        if kind in self._words:
            return self._words[kind].items()
        makers: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
            **dict.fromkeys(("job", "target"), lambda: [*self._jobs(""), *self._names()]),
            "run": lambda: [*self._jobs(typed), *self._names()],
            "name": self._names,
            "run_number": lambda: self._of_job("runs", arguments),
            "tag": lambda: self._of_job("tags", arguments),
            "nodes": lambda: self._nodes(typed),
            "node": lambda: ((node["label"], node["host"]) for node in self._known.nodes),
            "setting": lambda: self._of_settings(typed),
        }
        return makers[kind]() if kind in makers else ()

    def _jobs(self, typed: str) -> Iterator[tuple[str, str]]:
        """Yield the jobs, newest first; the runs of the one that is typed with a slash."""
        for job, about in self._newest_first():
            yield job, _described(about)
            if typed.startswith(f"{job}/"):
                yield from ((f"{job}/{number}", name) for number, name in about["runs"].items())

    def _newest_first(self) -> list[tuple[str, Mapping[str, Any]]]:
        return sorted(self._known.jobs.items(), key=lambda one: job_key(one[0]), reverse=True)

    def _names(self) -> Iterator[tuple[str, str]]:
        """Yield the names of runs, each once, with the job that has the newest of them."""
        seen = set()
        for job, about in self._newest_first():
            for name in reversed(about["runs"].values()):
                if name and name not in seen:
                    seen.add(name)
                    yield name, f"a run of {job}"

    def _of_job(self, what: str, arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield what is known of the job that the line names; of all of them if it names none that is known."""
        named = [self._options.get("--load", ""), self._options.get("--job_workspace", ""), *arguments]
        ids = {word.partition("/")[0] for word in named if word}
        jobs = self._newest_first()
        chosen = [one for one in jobs if one[0] in ids or not ids.isdisjoint(one[1]["runs"].values())] or jobs
        seen = set()
        for job, about in chosen:
            for value in about[what]:
                if value not in seen:
                    seen.add(value)
                    yield value, f"of {job}"

    def _nodes(self, typed: str) -> Iterator[tuple[str, str]]:
        """Yield sets of nodes: after what is typed up to the last comma, one more node, host, name or tag."""
        before = typed[: typed.rfind(",") + 1]
        if "[" in typed[len(before) :] or before.count("[") != before.count("]"):
            return
        found: dict[str, str] = {}
        for node in self._known.nodes:
            for tag in node["tags"]:
                found[tag] = "tag"
        for node in self._known.nodes:
            found.setdefault(node["label"], node["host"])
        for node in self._known.nodes:
            for name in {node["name"]: 0, node["host"]: 0}:
                found[name] = "several nodes" if name in found else node["label"]
        found["failed@last"] = "the nodes on which the last command failed"
        given = before.split(",")
        yield from ((before + value, about) for value, about in found.items() if value and value not in given)

    def _of_settings(self, typed: str) -> Iterator[tuple[str, str]]:
        name, equals, _ = typed.partition("=")
        if not equals:
            yield from ((f"{key}=", setting["about"]) for key, setting in self._settings.items())
        elif name in self._settings:
            yield from ((f"{name}={value}", "") for value in self._settings[name]["values"])


def _described(job: Mapping[str, Any]) -> str:
    names = [name for name in job["runs"].values() if name]
    return ", ".join([*names[-1:], *([job["state"]] if job["state"] else [])])
