"""A process's output on disk: complete, in time order, across rotation, and readable while it grows."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.agent.node import log_files
from clusterctl.agent.node.log_files import INDEX_ENTRY, LONGEST_LINE, Line, LogReader, LogWriter


class Clock:
    def __init__(self, t: float = 1000.0) -> None:
        self.t = t

    def __call__(self) -> float:
        return self.t


def write(directory: Path, *pieces: bytes, every_s: float = 1.0, rotate_bytes: int = 1 << 30) -> LogWriter:
    """Write the pieces, one every `every_s` seconds, starting at time 1000."""
    clock = Clock()
    writer = LogWriter(directory, "train", rotate_bytes, clock)
    for piece in pieces:
        writer.write(piece)
        clock.t += every_s
    return writer


def read(directory: Path, offset: int = 0, *, final: bool = True) -> list[Line]:
    return list(LogReader(directory, "train", offset).lines(final=final))


def texts(lines: list[Line]) -> list[bytes]:
    return [line.text for line in lines]


def test_the_log_holds_exactly_the_bytes_that_were_written(tmp_path: Path) -> None:
    pieces = [b"one\r", b"\x1b[31mtwo\0\n", b"\xff\xfe\n\n", b"no end"]
    write(tmp_path, *pieces).close()
    assert (tmp_path / "train.log").read_bytes() == b"".join(pieces)


def test_every_line_has_the_time_of_its_first_byte_and_the_offset_of_its_end(tmp_path: Path) -> None:
    write(tmp_path, b"a\nb", b"b\n", b"c\n")
    assert read(tmp_path) == [Line(1000, b"a", 2), Line(1000, b"bb", 5), Line(1002, b"c", 7)]


def test_the_index_has_at_most_one_entry_every_50_ms(tmp_path: Path) -> None:
    write(tmp_path, *[b"x\n"] * 1000, every_s=0.001)
    assert (tmp_path / ".train.idx").stat().st_size / INDEX_ENTRY.size in (20, 21)


def test_every_line_stays_readable_when_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = Clock()
    writer = LogWriter(tmp_path, "train", clock=clock)
    for t in (1000.0, 900.0, 900.5):
        clock.t = t
        writer.write(b"x\n")
    assert [line.t for line in read(tmp_path)] == [1000.0, 900.0, 900.5]


def test_lines_are_read_across_rotated_files(tmp_path: Path) -> None:
    pieces = [b"first\nsec", b"ond\nthird\n", b"fourth and ", b"more\n", b"fifth\n"]
    write(tmp_path, *pieces, rotate_bytes=8)
    names = sorted(path.name for path in tmp_path.glob("train.log*"))
    assert names == ["train.log", *(f"train.log.{n}" for n in range(1, len(names)))]
    assert len(names) > 3
    lines = read(tmp_path)
    assert texts(lines) == [b"first", b"second", b"third", b"fourth and more", b"fifth"]
    assert [line.t for line in lines] == [1000, 1000, 1001, 1002, 1004]


def test_more_than_nine_rotations_keep_their_order(tmp_path: Path) -> None:
    write(tmp_path, *(b"%d\n" % n for n in range(25)), rotate_bytes=1)
    assert texts(read(tmp_path)) == [b"%d" % n for n in range(25)]


def test_a_reader_continues_while_the_log_grows_and_is_rotated(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "train", rotate_bytes=10)
    reader = LogReader(tmp_path, "train")
    seen: list[bytes] = []
    for n in range(20):
        writer.write(b"line %d\nhalf" % n)
        seen += texts(list(reader.lines(final=False)))
        writer.write(b" of %d\n" % n)
    seen += texts(list(reader.lines(final=False)))
    assert seen == list(itertools.chain.from_iterable((b"line %d" % n, b"half of %d" % n) for n in range(20)))


def test_a_line_without_an_end_waits_until_the_log_is_final(tmp_path: Path) -> None:
    write(tmp_path, b"whole\npart")
    assert texts(read(tmp_path, final=False)) == [b"whole"]
    assert read(tmp_path) == [Line(1000, b"whole", 6), Line(1000, b"part", 10)]


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    reader = LogReader(tmp_path, "train")
    reader.seek_tail(5)
    assert list(reader.lines(final=True)) == []


@pytest.mark.parametrize("length", [LONGEST_LINE - 1, LONGEST_LINE, LONGEST_LINE + 1, 5 * LONGEST_LINE + 7])
def test_an_overlong_line_is_read_in_pieces_and_nothing_is_lost(tmp_path: Path, length: int) -> None:
    write(tmp_path, b"before\n", b"x" * length, b"\nafter\n")
    lines = read(tmp_path)
    assert texts(lines)[0] == b"before"
    assert texts(lines)[-1] == b"after"
    assert b"".join(texts(lines)[1:-1]) == b"x" * length
    assert lines[-1].end == length + 14


@pytest.mark.parametrize("lines", [0, 1, 2, 3, 99])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_the_tail_is_the_last_lines(tmp_path: Path, lines: int, end: bytes) -> None:
    write(tmp_path, b"one\n\n", b"three\nfour" + end, rotate_bytes=4)
    reader = LogReader(tmp_path, "train")
    reader.seek_tail(lines)
    assert texts(list(reader.lines(final=True))) == [b"one", b"", b"three", b"four"][4 - lines if lines < 4 else 0 :]


def test_the_tail_of_a_large_log_is_searched_from_its_end(tmp_path: Path) -> None:
    write(tmp_path, b"".join(b"line %d\n" % n for n in range(100_000)))
    reader = LogReader(tmp_path, "train")
    reader.seek_tail(3)
    assert texts(list(reader.lines(final=True))) == [b"line 99997", b"line 99998", b"line 99999"]


def test_the_tail_of_a_log_without_line_ends_does_not_fill_the_memory(tmp_path: Path) -> None:
    """The log is from a progress bar that only writes carriage returns."""
    write(tmp_path, b"\rprogress" * 1_000_000)
    reader = LogReader(tmp_path, "train")
    assert peak_bytes(lambda: reader.seek_tail(10)) < 4 << 20


def test_reading_a_large_log_takes_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "train", rotate_bytes=3 << 20)
    for n in range(80):
        writer.write(b"%07d %s\n" % (n, b"x" * 990) * 130)
    counted = 0

    def count() -> None:
        nonlocal counted
        counted = sum(1 for _ in LogReader(tmp_path, "train").lines(final=True))

    assert peak_bytes(count) < 3 << 20
    assert counted == 80 * 130


def peak_bytes(call: object) -> int:
    assert callable(call)
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_looking_up_times_opens_the_index_no_more_than_once_for_each_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, b"x\n" * 1000)
    looks: list[int] = []
    really = LogReader._read_index
    monkeypatch.setattr(LogReader, "_read_index", lambda self: (looks.append(1), really(self))[1])
    assert len(read(tmp_path)) == 1000
    assert len(looks) <= 3


@settings(max_examples=60)
@given(
    pieces=st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\1", b"\n")), max_size=25),
    rotate_bytes=st.integers(1, 120),
    read_bytes=st.integers(1, 50),
    longest=st.integers(2, 30),
    data=st.data(),
)
def test_everything_that_is_written_can_be_read_from_any_line_on(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[bytes],
    rotate_bytes: int,
    read_bytes: int,
    longest: int,
    data: st.DataObject,
) -> None:
    directory = tmp_path_factory.mktemp("log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_files, "READ_BYTES", read_bytes)
        patch.setattr(log_files, "LONGEST_LINE", longest)
        write(directory, *pieces, rotate_bytes=rotate_bytes).close()
        expected = b"".join(pieces)
        lines = read(directory)
        assert rebuilt(lines, expected) == expected
        assert [line.t for line in lines] == sorted(line.t for line in lines)
        if lines:
            at = data.draw(st.integers(0, len(lines) - 1))
            again = read(directory, lines[at].end)
            assert b"".join(texts(again)) == b"".join(texts(lines[at + 1 :]))


def rebuilt(lines: list[Line], whole: bytes) -> bytes:
    """Return the bytes that the lines stand for; gaps between lines that are not text are line ends."""
    parts, before = [], 0
    for line in lines:
        gap = line.end - before - len(line.text)
        assert whole[line.end - gap : line.end] == b"\n" * gap
        parts.append(line.text + b"\n" * gap)
        before = line.end
    return b"".join(parts)


def test_a_reader_that_keeps_starting_over_misses_nothing_while_files_rotate(tmp_path: Path) -> None:
    """Followers whose connections break do this: each continues at the offset of the previous one."""
    count, seen, offset = 20_000, list[bytes](), 0
    writer = LogWriter(tmp_path, "train", rotate_bytes=1000)

    def write_all() -> None:
        for n in range(0, count, 10):
            writer.write(b"".join(b"line %d\n" % i for i in range(n, n + 10)))

    writing = threading.Thread(target=write_all)
    writing.start()
    while True:
        done = not writing.is_alive()
        lines = list(itertools.islice(LogReader(tmp_path, "train", offset).lines(final=False), 2000))
        seen += texts(lines)
        offset = lines[-1].end if lines else offset
        if done and not lines:
            break
    writer.close()
    assert len(list(tmp_path.glob("train.log.*"))) > 100
    assert seen == [b"line %d" % n for n in range(count)]
