"""What a trainer prints is what its rank prints."""

from __future__ import annotations

import os
from pathlib import Path

from clusterctl.agent.node.log_files import LogWriter
from clusterctl.ranks.output import LONGEST_LINE, LogForwarder


def test_new_output_is_passed_on_also_after_a_rotation(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    output = LogForwarder(tmp_path / "train.log", theirs)
    output.pass_on()
    log = LogWriter(tmp_path, "train", rotate_bytes=8)
    log.write(b"one\n")
    output.pass_on()
    assert os.read(ours, 100) == b"one\n"
    log.write(b"two and\n")  # it is full now
    log.write(b"three\n")
    output.pass_on()
    assert os.read(ours, 100) == b"two and\nthree\n"
    log.close()


def test_without_a_reader_nothing_is_passed_on(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    (tmp_path / "train.log").write_text("one\n")
    output = LogForwarder(tmp_path / "train.log", theirs)
    output.pass_on()
    output.pass_on()
    os.close(theirs)


def test_a_line_is_passed_on_in_one_piece_if_it_is_complete_by_the_next_look(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    output = LogForwarder(tmp_path / "train.log", theirs)
    log = LogWriter(tmp_path, "train")
    for piece in (b"one\nha", b"lf"):
        log.write(piece)
        output.pass_on()
    assert os.read(ours, 100) == b"one\n"
    log.write(b"\n50 %")
    output.pass_on()
    assert os.read(ours, 100) == b"half\n"
    output.pass_on()
    assert os.read(ours, 100) == b"50 %"
    log.write(b" 51")
    output.pass_on(final=True)
    assert os.read(ours, 100) == b" 51"
    log.close()


def test_a_long_line_without_an_end_is_passed_on_as_it_grows(tmp_path: Path) -> None:
    passed = tmp_path / "passed"
    fd = os.open(passed, os.O_WRONLY | os.O_CREAT)
    output = LogForwarder(tmp_path / "train.log", fd)
    log = LogWriter(tmp_path, "train")
    for turn in range(1, 4):
        log.write(b"12 % \r" * (1 << 18))
        output.pass_on()
        assert passed.stat().st_size > turn * 6 * (1 << 18) - LONGEST_LINE
    output.pass_on(final=True)
    assert passed.read_bytes() == b"12 % \r" * (3 << 18)
    os.close(fd)
    log.close()
