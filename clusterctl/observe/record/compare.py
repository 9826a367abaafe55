"""Compare two runs: settings, arguments, ENV, packages, files and metrics. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from clusterctl.common.curves import Bucket, Curve, mean_of
from clusterctl.inventory import nodeset
from clusterctl.observe.record.contents import Contents, File, Tree
from clusterctl.observe.record.curves import final, merged
from clusterctl.observe.record.model import RunRecord

CELLS = 400  # in which the lowest and the highest value are looked for
MOST_METRICS = 100


class Metric(NamedTuple):
    """A figure of all trainers together: its value at the end, and its lowest and highest with their steps.

    `final` is None if the last value of a trainer is not finite, or unknown.
    """

    name: str
    final: float | None
    low: Bucket | None
    high: Bucket | None
    gaps: int


def metrics(record: RunRecord) -> list[Metric]:
    """Return the loss and the metrics of the program."""
    loss = _metric("loss", list(record.find("step", "loss", role="trainer")))
    logged = [_metric(name, list(record.find("log", name))) for name in record.metrics[:MOST_METRICS]]
    return [one for one in (loss, *logged) if one is not None]


def _metric(name: str, curves: list[Curve]) -> Metric | None:
    curves = [curve for curve in curves if curve.buckets]
    if not curves:
        return None
    whole = merged(curves, by="step", cells=CELLS) or merged(curves, by="time", cells=CELLS)
    known = [bucket for bucket in whole if bucket.mean is not None]
    end = final(curves)
    if end is not None and known:
        known.append(_end(whole[-1], end))
    return Metric(
        name,
        end,
        min(known, key=lambda bucket: bucket.mean or 0.0, default=None),
        max(known, key=lambda bucket: bucket.mean or 0.0, default=None),
        sum(bucket.gaps for bucket in whole),
    )


def _end(last: Bucket, value: float) -> Bucket:
    """Return the final value as a point, so that no extreme is beaten by it."""
    return last._replace(t0=last.t1, step0=last.step1, mean=value, low=value, high=value, last=value)


T = TypeVar("T")
Hide = Callable[[str], str]
WORDS = "(words)"  # the name of the arguments that belong to no option


@dataclass(frozen=True)
class Pair(Generic[T]):
    """A value in both runs, None where it is missing. `same` can be False for values that are hidden."""

    name: str
    a: T | None
    b: T | None
    same: bool


class Range(NamedTuple):
    """A metric of all trainers together. `final` is None if the last value of a trainer is not finite."""

    final: float | None
    lowest: float | None
    highest: float | None


@dataclass(frozen=True)
class RunDiff:
    """The differences of two runs, without secrets in any name or text.

    `cause` has the first causes. `facts` and `figures` are about the run as a whole: its outcome, and its duration,
    steps and throughput. `env` has the names of variables, True where they are set. Of `files` there are only those
    that differ, with their distinct contents on the nodes.
    """

    a: RunRecord
    b: RunRecord
    cause: Pair[str]
    facts: tuple[Pair[str], ...]
    figures: tuple[Pair[float], ...]
    settings: tuple[Pair[str], ...]
    arguments: tuple[Pair[str], ...]
    env: tuple[Pair[bool], ...]
    packages: tuple[Pair[str], ...]
    files: tuple[Pair[tuple[File, ...]], ...]
    metrics: tuple[Pair[Range], ...]


def compare(records: Sequence[RunRecord], contents: Sequence[Contents], trees: Mapping[str, Tree]) -> RunDiff:
    """Compare two runs. `trees` may be empty if both have the same."""
    a, b = records
    contents = heard(records, contents)

    def hide(text: str) -> str:
        return a.secrets.hide(b.secrets.hide(text))

    def texts(of: Callable[[int], Mapping[str, str]]) -> tuple[Pair[str], ...]:
        return pairs(*({hide(name): hide(text) for name, text in of(side).items()} for side in (0, 1)))

    causes = [hide(record.cause.headline) if record.cause else None for record in records]
    return RunDiff(
        a,
        b,
        cause=Pair("first cause", causes[0], causes[1], same=causes[0] == causes[1]),
        facts=pairs(*(dict(_facts(record, hide)) for record in records)),
        figures=pairs(dict(_figures(a)), dict(_figures(b))),
        settings=texts(lambda side: records[side].settings),
        arguments=texts(lambda side: options(records[side].arguments)),
        env=tuple(_env(a, b)),
        packages=texts(lambda side: packages(contents[side].packages)),
        files=tuple(_files(contents, trees, hide)),
        metrics=pairs(*({hide(one.name): _range(one) for one in metrics(record)} for record in records)),
    )


def pairs(a: Mapping[str, T], b: Mapping[str, T]) -> tuple[Pair[T], ...]:
    """Return the values of both by name: names of `a` in their order, then the others."""
    names = [*a, *(name for name in b if name not in a)]
    return tuple(Pair(name, a.get(name), b.get(name), a.get(name) == b.get(name)) for name in names)


def _facts(record: RunRecord, hide: Hide) -> Iterator[tuple[str, str]]:
    yield "outcome", record.state
    if record.workspace is not None:
        yield "workspace", hide(record.workspace)
    yield "nodes", nodeset(record.members.by_id)
    if record.resumed is not None:
        of = f"{job} run" if (job := record.resumed.get("job")) else "run"
        yield "resumed from", f"step {record.resumed['step']} of {of} {int(record.resumed['run'])}"


def _figures(record: RunRecord) -> Iterator[tuple[str, float]]:
    if record.duration_s is not None:
        yield "duration_s", record.duration_s
    for name, newest in (("pass", record.newest("pass")), ("step", record.newest("step"))):
        if newest is not None:
            yield name, newest
    means = [mean_of(curve.buckets) for curve in record.find("step", "samples_per_s", role="trainer")]
    rates = [mean for mean in means if mean is not None]
    if rates:
        yield "samples_per_s", sum(rates)
    yield "restarts", sum(process.restarts for process in record.processes)


def options(arguments: Sequence[str]) -> dict[str, str]:
    """Return a program's arguments by option: `--name=value`, `--name value`, `--name`; other words are `WORDS`."""
    found: dict[str, list[str]] = {}
    last = WORDS
    for word in arguments:
        name, sign, value = word.partition("=")
        if not _is_option(word):
            found.setdefault(last, []).append(word)
            last = WORDS
            continue
        found.setdefault(name, []).extend([value] if sign else [])
        last = WORDS if sign else name
    return {name: " ".join(values) for name, values in found.items()}


def _is_option(word: str) -> bool:
    return word.startswith("-") and word[1:2] not in ("", ".") and not word[1:2].isdigit()


def packages(by_node: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """Return the version of each package, with the nodes that have it where not all have the same."""
    having: dict[str, dict[str, list[int]]] = {}
    for node, versions in by_node.items():
        for name, version in versions.items():
            having.setdefault(name, {}).setdefault(version, []).append(node)
    return {name: _versions(having[name], len(by_node)) for name in sorted(having)}


def _versions(having: Mapping[str, Sequence[int]], nodes: int) -> str:
    if [len(some) for some in having.values()] == [nodes]:
        return next(iter(having))
    return ", ".join(f"{version} ({nodeset(some)})" for version, some in having.items())


def _env(a: RunRecord, b: RunRecord) -> Iterator[Pair[bool]]:
    for name in dict.fromkeys((*a.env, *b.env)):
        sides = name in a.env, name in b.env
        yield Pair(name, *sides, same=all(sides) and a.secrets.has_same(name, b.secrets))


def _files(contents: Sequence[Contents], trees: Mapping[str, Tree], hide: Hide) -> Iterator[Pair[tuple[File, ...]]]:
    """Yield the files that differ. Their contents on all nodes are compared together: shards may move."""
    names = [frozenset(one.trees.values()) for one in contents]
    if names[0] == names[1]:
        return
    a, b = (_contents_by_path(trees[name] for name in some) for some in names)
    for path in sorted(a.keys() | b.keys()):
        if a.get(path) != b.get(path):
            yield Pair(hide(path), _sorted(a.get(path)), _sorted(b.get(path)), same=False)


def _contents_by_path(trees: Iterable[Tree]) -> dict[str, set[File]]:
    found: dict[str, set[File]] = {}
    for tree in trees:
        for path, file in tree.items():
            found.setdefault(path, set()).add(file)
    return found


def _sorted(files: set[File] | None) -> tuple[File, ...] | None:
    return tuple(sorted(files)) if files else None


def heard(records: Sequence[RunRecord], contents: Sequence[Contents]) -> tuple[Contents, ...]:
    """Return the contents without the nodes that did not answer for one of the runs."""
    silent = {
        node
        for record, one in zip(records, contents, strict=True)
        for node in record.members.by_id
        if node not in one.trees
    }
    return tuple(
        replace(
            one,
            trees={node: name for node, name in one.trees.items() if node not in silent},
            packages={node: versions for node, versions in one.packages.items() if node not in silent},
        )
        for one in contents
    )


def _range(metric: Metric) -> Range:
    lowest, highest = (one.mean if one else None for one in (metric.low, metric.high))
    return Range(metric.final, lowest, highest)
