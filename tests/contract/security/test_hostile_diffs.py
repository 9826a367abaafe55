"""`diff`: whatever a node says about its files, packages and settings, the comparison is harmless."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from clusterctl.observe.record.contents import files_in
from contract.security.liars import EVIL, JOB, Liars, is_harmless, lines, status
from contract.security.test_hostile_answers import CLOCK, JUNK, answer, changed
from contract.security.test_hostile_curves import CURVE
from unit.agent.specs import spec_json

CONTENTS = {"job": JOB, "run": "0001", "digest": "d", "changed": 1, "packages": {"numpy": "1.26", EVIL: EVIL}}
FILES = {"files": [["train.py", 12, "0" * 64], [EVIL, 3, f"-> {EVIL}"]]}
VALUES = {"env": {EVIL: EVIL, "API": "hunter2-in-env"}, "arguments": [EVIL, "--say=hunter2-in-env"]}
SPEC = spec_json(**VALUES, settings={"SEED": EVIL, EVIL: "1"}, versions={"numpy": EVIL})


def comparing(node: int, request: dict[str, Any], done: Any = None, files: Any = None) -> Iterator[bytes]:
    """Return the answer of an agent for two runs of which the second one has other files and settings."""
    run = request.get("run") or "0001"
    operation = request["op"]
    if operation == "status":
        return lines({"done": status(node, run=run, state="failed")})
    if operation == "diagnose":
        spec = SPEC if run == "0002" else {**SPEC, "arguments": [], "settings": {}, "env": {}}
        return lines(*CLOCK, {"done": {**status(node, run=run), "events": [], "outputs": [], "spec": spec}})
    if operation == "curves":
        metric = {**CURVE, "rank": node, "of": "log", "name": f"{EVIL} hunter2-in-env {run}"}
        return lines({"curves": [metric]}, {"done": {"at": 9, "now": 1.7e9}})
    if operation == "contents":
        if request.get("list"):
            return lines(FILES if files is None else files, {"done": CONTENTS})
        return lines({"done": {**CONTENTS, "digest": run} if done is None else done})
    return answer(node, request)


def test_what_a_hostile_node_says_is_shown_harmlessly_and_without_secrets(liars: Liars) -> None:
    liars.answers["node0"] = liars.answers["node1"] = lambda request: comparing(int(request.get("x", 0)), request)
    liars.answers["node1"] = lambda request: comparing(1, request)
    for options in ((), ("--json",), ("--verbose",)):
        code, out, err = liars.run("diff", f"{JOB}/1", f"{JOB}/2", *options)
        assert code == 0, err
        assert is_harmless(out + err)
        assert "hunter2" not in out + err
        assert "SEED" in out
        assert "$API" in out


def test_malformed_contents_are_an_error_of_their_node_only(liars: Liars) -> None:
    liars.answers["node0"] = lambda request: comparing(0, request)
    attempts = 0
    for index, junk in enumerate(JUNK):
        wrong = [(done, None) for done in changed(CONTENTS, junk)] + [(None, files) for files in changed(FILES, junk)]
        for done, files in itertools.islice(wrong, index % 6, None, 6):
            liars.answers["node1"] = lambda request, says=(done, files): comparing(1, request, *says)
            code, out, err = liars.run("diff", f"{JOB}/1", f"{JOB}/2", "--json")
            assert "Traceback" not in err, (done, files, err)
            assert code in (0, 3), (done, files, err)
            assert json.loads(out)["settings"], (done, files)
            assert is_harmless(out + err)
            attempts += 1
    assert attempts > 15


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_a_malformed_list_of_files_is_refused(junk: Any) -> None:
    assert list(files_in(FILES)) == ["train.py", EVIL]
    for wrong in changed(FILES, junk):
        try:
            files = files_in(wrong)
        except ValueError:
            continue
        assert all(isinstance(path, str) and file.bytes >= 0 for path, file in files.items())
        assert all(isinstance(file.contents, str) for file in files.values())
