"""Run the tests that reach each seeded fault: `python -m seeded.run RESULTS [PACKAGE|ID...] --map MAP`, in `tests/`.

RESULTS gets one line of JSON for each fault; those that have one are not run again. `caught`: a test failed with the
fault, and passed without it. `timed out`: the tests took many times as long as without it. `survived`: all passed, or
there was no time for the rest of them (`left`).
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from seeded.cage import TIME_OVER
from seeded.faults import Fault, files_reaching, read_faults
from seeded.reach import read_map
from seeded.trees import ROOT, Ran, Tree, add_options

FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
OUTCOMES = ("caught", "timed out", "survived", "does not apply")
SOME_TESTS_FAILED, INTERRUPTED, NO_TESTS = 1, 2, 5
BATCH_S = 30.0
NUMBERS = count(1)  # of all writes, see `Tree.write`


def run_fault(tree: Tree, fault: Fault, known: list[dict[str, Any]], limit_s: float) -> dict[str, Any]:
    about = {"id": fault.id, "package": fault.package}
    try:
        source = (ROOT / fault.file).read_text(encoding="utf-8")
        fault.applied(source)
    except (OSError, ValueError) as exc:
        return {**about, "outcome": "does not apply", "why": str(exc)}
    tests = files_reaching(fault, source, known)
    left_s, ran, slow = limit_s, 0, []
    for batch, seconds in _batches(tests):
        if left_s < min(seconds, limit_s / 2):
            continue
        most_s = min(left_s, max(60.0, 5 * seconds))
        result = _with(fault, source, tree, batch, most_s)
        left_s, ran = left_s - result.seconds, ran + len(batch)
        if result.code == TIME_OVER:
            slow += batch if most_s >= 5 * seconds else []
        elif result.code not in (0, NO_TESTS) and (by := _sound(tree, batch, result.output, most_s)):
            return {**about, "outcome": "caught", "by": by, "seconds": round(limit_s - left_s, 1)}
    outcome = "timed out" if slow else "survived"
    return {**about, "outcome": outcome, "slow": slow, "ran": ran, "left": len(tests) - ran}


def _with(fault: Fault, source: str, tree: Tree, tests: list[str], limit_s: float) -> Ran:
    """Run tests with a fault, and take it out again."""
    tree.write(fault.file, fault.applied(source), next(NUMBERS))
    try:
        return tree.pytest("-x", *tests, limit_s=limit_s)
    finally:
        tree.write(fault.file, source, next(NUMBERS))


def _batches(tests: list[tuple[str, float]]) -> Iterator[tuple[list[str], float]]:
    """Yield the files in their order, some of them together: a start of pytest takes seconds, too."""
    batch: list[str] = []
    whole_s = 0.0
    for test, seconds in tests:
        if batch and whole_s + seconds > BATCH_S:
            yield batch, whole_s
            batch, whole_s = [], 0.0
        batch.append(test)
        whole_s += seconds
    if batch:
        yield batch, whole_s


def _sound(tree: Tree, tests: list[str], output: str, limit_s: float) -> str | None:
    """Return the test that failed if it passes without the fault, else None."""
    found = FAILED.search(output)
    names = [found[1]] if found else tests
    return names[0] if tree.pytest(*names, limit_s=limit_s).code == 0 else None


def table(results: Iterable[Mapping[str, Any]]) -> str:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        counts[result["package"]][result["outcome"]] += 1
        counts["all"][result["outcome"]] += 1
    order = sorted(counts, key=lambda name: (name == "all", name))
    rows: list[tuple[str, ...]] = [("package", "faults", *OUTCOMES)]
    rows += [(name, str(counts[name].total()), *(str(counts[name][one]) for one in OUTCOMES)) for name in order]
    return "\n".join(f"{row[0]:12}" + "".join(f"{cell:>16}" for cell in row[1:]) for row in rows)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="seeded.run", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("only", nargs="*", help="packages, or ids of faults")
    parser.add_argument("--map", type=Path, default=Path("/nonexistent"), help="of seeded.reach")
    add_options(parser, limit_s=240)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    chosen = _parsed(arguments)
    done = {result["id"] for result in read_map(chosen.results)}
    faults = [
        one
        for one in read_faults()
        if one.id not in done and (not chosen.only or {one.id, one.package} & {*chosen.only})
    ]
    known = read_map(chosen.map)
    trees: queue.Queue[Tree] = queue.Queue()
    for number in range(min(chosen.jobs, len(faults))):
        trees.put(Tree.copy(chosen.work / f"fault{number}", slow=chosen.slow))

    def run(fault: Fault) -> None:
        tree = trees.get()
        result = run_fault(tree, fault, known, chosen.limit)
        trees.put(tree)
        with chosen.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(result["id"], result["outcome"], result.get("by", ""), flush=True)

    with ThreadPoolExecutor(chosen.jobs) as pool:
        list(pool.map(run, faults))
    print(table(read_map(chosen.results)))


if __name__ == "__main__":
    main(sys.argv[1:])
