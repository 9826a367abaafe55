"""`clusterctl check`, and the layout of its findings."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable

from clusterctl.api.nodes import check as check_nodes
from clusterctl.check import Finding, Report
from clusterctl.cli import style
from clusterctl.cli.console import human_bytes, plural
from clusterctl.cli.invocation import Invocation
from clusterctl.cluster.answers import GpuReport
from clusterctl.errors import ClusterctlError, NodeError, RefusedError
from clusterctl.inventory import fold

LABEL = 14
GAP = 5


def check(invocation: Invocation) -> None:
    with invocation.cluster() as cluster:
        with invocation.progress.operation("checking"):
            checked = check_nodes(cluster)
        for line in lines(checked.report):
            invocation.console.say(line)
        invocation.console.finish(checked.document, problem(checked.report, len(cluster.nodes)))


def lines(report: Report) -> list[str]:
    return [*_nodes(report), *_gpus(report), *finding_lines(report.findings), *_pairs(report), *_verdict(report)]


def _nodes(report: Report) -> list[str]:
    """Describe the nodes, identical ones on one line."""
    groups: dict[tuple[str, str], list[int]] = {}
    for node, facts in report.facts.items():
        versions = [f"{name} {version}" for name, version in facts["versions"].items()]
        sizes = [plural(facts["cores"], "core"), f"{human_bytes(facts['memory']['total'])} memory"]
        groups.setdefault((", ".join([f"{report.carriers[node]} ok", *versions]), ", ".join(sizes)), []).append(node)
    return [
        _labelled(fold(nodes), versions, f"{sizes}, {_disk(report, nodes)}", gap=", ")
        for (versions, sizes), nodes in groups.items()
    ]


def _gpus(report: Report) -> list[str]:
    """Describe the GPUs of the nodes that have some, equal ones on one line."""
    groups: dict[tuple[str, int, str], list[int]] = {}
    free: dict[tuple[str, int, str], list[int]] = {}
    for node, facts in report.facts.items():
        found = facts["gpus"]
        by_name = Counter(gpu["name"] for gpu in found["gpus"]) if found else Counter[str]()
        for name, number in by_name.items():
            key = (name, number, _limit(found))
            groups.setdefault(key, []).append(node)
            free.setdefault(key, []).extend(_free(found, name))
    return [
        _labelled(fold(nodes), f"{number} x {name}", f"{_least(free[key])}{limit}", gap=", ")
        for key, nodes in groups.items()
        for name, number, limit in [key]
    ]


def _free(found: GpuReport | None, name: str) -> list[int]:
    """Return the free bytes of each GPU of this name; nothing if the driver does not report them."""
    gpus = found["gpus"] if found else []
    return [
        max(0, gpu["total"] - gpu["used"])
        for gpu in gpus
        if gpu["name"] == name and gpu["total"] is not None and gpu["used"] is not None
    ]


def _least(free: list[int]) -> str:
    if not free:
        return "memory unknown"
    same = len({human_bytes(count) for count in free}) == 1
    each = " each" if len(free) > 1 and same else ""
    return f"{'' if same else 'at least '}{human_bytes(min(free))} free{each}"


def _limit(found: GpuReport | None) -> str:
    """Say how many devices trainers may use, if these are not the GPUs."""
    if found is None or len(found["devices"]) == len(found["gpus"]):
        return ""
    if len(found["devices"]) > len(found["gpus"]):
        return f", divided into {plural(len(found['devices']), 'instance')}"
    return f"; trainers may use {','.join(found['devices']) or 'none'}"


def _disk(report: Report, nodes: list[int]) -> str:
    free = [report.facts[node]["disk"]["free"] for node in nodes]
    same = len({human_bytes(count) for count in free}) == 1
    return f"{'' if same else 'at least '}{human_bytes(min(free))} disk free"


def _labelled(ids: str, text: str, more: str | None = None, *, gap: str = GAP * " ", colour: str | None = None) -> str:
    """Return a label and a text, with `more` beside the text if it fits, else below. Wrapped to the terminal."""
    name = (f"nodes {ids}" if "," in ids or "-" in ids else f"node {ids}") if ids else "this machine"
    label = f"{name:<{LABEL}}" if len(name) < LABEL else f"{name}  "
    if more is not None and len(label + text + gap + more) <= shutil.get_terminal_size().columns:
        return label + style.paint(text, colour) + gap + more
    lines = _wrapped(label + text)
    lines = lines[: len(label)] + style.paint(lines[len(label) :], colour)
    return lines if more is None else lines + "\n" + _wrapped(" " * LABEL + more)


def _wrapped(line: str) -> str:
    width, indent = shutil.get_terminal_size().columns, " " * LABEL
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Return one line per finding, or two if the terminal is too narrow to show the fix beside it."""
    looks = {True: ("blocks start: ", style.BAD), False: ("", style.WARNING)}
    lines = []
    for one in findings:
        prefix, colour = looks[one.blocks]
        lines.append(_labelled(fold(one.nodes), prefix + one.message, one.hint, colour=colour))
    return lines


def _pairs(report: Report) -> list[str]:
    pairs = report.pairs
    if not pairs.possible:
        return []
    names = {facts["interface"] for facts in report.facts.values()}
    where = f" on {names.pop()}" if len(names) == 1 and None not in names else ""
    tried = "" if pairs.tried == pairs.possible else f"; tried {pairs.tried:,} of {pairs.possible:,} pairs"
    listening = fold(node for node, facts in report.facts.items() if facts["listening"])
    label = f"{fold(report.facts)} x {listening}"
    reach = (style.good if pairs.ok == pairs.tried else style.bad)(f"{pairs.ok:,}/{pairs.tried:,} pairs")
    text = reach + f" can reach each other{where}{tried}"
    return [(f"{label:<{LABEL}}" if len(label) < LABEL else f"{label}  ") + text]


def _verdict(report: Report) -> list[str]:
    if not report.findings:
        return [style.good("no problems found")]
    if report.stops:
        return []  # the error has the count
    return [style.warning(plural(len(report.findings), "warning")) + "; nothing blocks `start`"]


def problem(report: Report, of: int) -> ClusterctlError | None:
    """Return the error to exit with: refused host keys first, then anything that would block `start`."""
    if not report.stops:
        return None
    refused = [error for error in report.errors.values() if isinstance(error, RefusedError)]
    details = {
        "nodes": [{**error.to_json(), "reason": error.details.get("reason")} for error in report.errors.values()]
    }
    message = f"{plural(len(report.findings), 'finding')}{_blocking(len(report.stops), len(report.findings))} `start`"
    if report.errors:
        message += f"; {len(report.errors)} of {plural(of, 'node')} could not be checked"
    return (RefusedError if refused else NodeError)(message, details=details)


def _blocking(count: int, of: int) -> str:
    verb = "blocks" if count == 1 else "block"
    return f" {verb}" if count == of else f", {count} of which {verb}"
