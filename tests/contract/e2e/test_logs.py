"""`logs`: of all nodes in time order, followed, folded and searched."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
from collections.abc import Iterator

import pytest

from support.processes import wait_until
from support.site import Site

pytestmark = pytest.mark.nodes(3)

#: Prints lines for a second; then what the file SAY tells it: lines of ranks and words, `end` for the last one.
TALK = """
import os, pathlib, sys, time
rank = os.environ["CLUSTERCTL_RANK"]
for n in range(200):
    print("warming up", n, flush=True)
    time.sleep(0.005)
print("all together\\nonly", rank, flush=True)
said = 0
while True:
    lines = pathlib.Path({say!r}).read_text().splitlines()
    for line in lines[said:]:
        ranks, _, words = line.partition(" ")
        if ranks == "end":
            sys.exit()
        if rank in ranks:
            print(words, flush=True)
    said = len(lines)
    time.sleep(0.02)
"""
FIRST_LINES = 202


class Talk:
    """A job of three trainers that print what they are told to."""

    def __init__(self, site: Site) -> None:
        self._say = site.directory / "say"
        self._say.write_text("")
        site.conf(ENGINE="none", PSERVERS=0)
        self.job = site.start(TALK.format(say=str(self._say)))
        logs = [site.job_dir(self.job, node) / "log" / "train.log" for node in range(3)]
        assert wait_until(lambda: all(log.read_text().count("\n") >= FIRST_LINES for log in logs))

    def say(self, *lines: str) -> None:
        with self._say.open("a") as f:
            f.write("".join(f"{line}\n" for line in lines))


class Following:
    """A running `logs -f`, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._process = process
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    def sees(self, pattern: str) -> bool:
        return any(re.search(pattern, line) for line in list(self.lines))

    def end(self) -> int:
        code = self._process.wait(180)
        self._thread.join()
        return code


@contextlib.contextmanager
def follow(site: Site, *options: str) -> Iterator[Following]:
    with site.popen("logs", "-f", *options) as process:
        following = Following(process)
        try:
            yield following
        finally:
            process.terminate()
            following.end()


def times_of(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines]


@pytest.mark.slow
def test_following_shows_the_past_in_time_order_and_then_folds_new_lines(site: Site) -> None:
    talk, losses = Talk(site), list[str]()

    def is_folded() -> bool:
        losses.append(f"loss 0.3{len(losses)}")
        talk.say(f"012 {losses[-1]}")
        return wait_until(lambda: folded.sees(r"trainers 0-2: +loss"), 3)

    with follow(site, talk.job) as plain, follow(site, talk.job, "--fold") as folded:
        assert wait_until(lambda: len(plain.lines) >= 3 * FIRST_LINES and folded.sees("only 2"))
        assert times_of(plain.lines) == sorted(times_of(plain.lines))
        assert {line.split()[1] for line in plain.lines[: FIRST_LINES // 2]} == {
            f"trainer{n}@node{n}" for n in range(3)
        }
        assert wait_until(is_folded)
        talk.say("1 alone", "end")
        assert wait_until(lambda: folded.sees(r"^\d\d:\d\d:\d\d\.\d{3} trainer1@node1 +alone$"))
        assert (plain.end(), folded.end()) == (0, 0)
    assert folded.sees(r"trainer0@node0 +only 0$")
    for rank in range(3):
        assert sum(f"trainer{rank}@node{rank}  loss" in line for line in plain.lines) == len(losses)
    once = site.ok("logs", talk.job, "--fold", "--grep", "alone|loss").out
    assert re.search(r"^\S+ trainers 0-2: +loss 0.3\d\n", once, re.MULTILINE)
    assert re.search(r"^\S+ trainer1@node1  alone\n\Z", once, re.MULTILINE)
    records = site.ok("logs", "-f", talk.job, "--fold", "--json", "--grep", "loss").out.splitlines()
    assert [json.loads(record)["line"] for record in records] == [loss for loss in losses for _ in range(3)]


def test_following_begins_with_the_last_matching_lines_and_continues_with_new_ones(site: Site) -> None:
    talk = Talk(site)
    with follow(site, talk.job, "--tail", "2", "--grep", "5$", "--role", "trainer") as following:
        assert wait_until(lambda: len(following.lines) == 6)
        talk.say("0 no", "0 yes 5", "end")
        assert following.end() == 0
    assert times_of(following.lines[:6]) == sorted(times_of(following.lines[:6]))
    words = sorted(line.split(maxsplit=2)[1:] for line in following.lines)
    assert [line[1].strip() for line in words] == [
        *("warming up 185", "warming up 195", "yes 5"),
        *("warming up 185", "warming up 195") * 2,
    ]
