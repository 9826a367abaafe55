"""A process's output on disk: complete, in time order, across rotation, and readable while it grows."""

from __future__ import annotations

import itertools
import re
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.agent.node import log_files
from clusterctl.agent.node.log_files import INDEX_ENTRY, LoggedLine, LogReader, LogWriter


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


def read(directory: Path, offset: int = 0, *, final: bool = True) -> list[LoggedLine]:
    return list(LogReader(directory, "train", offset).lines(final=final))


def texts(lines: list[LoggedLine]) -> list[bytes]:
    return [line.text for line in lines]


def test_every_line_has_the_time_of_its_first_byte_and_the_offset_of_its_end(tmp_path: Path) -> None:
    write(tmp_path, b"a\nb", b"b\n", b"c\n")
    assert read(tmp_path) == [LoggedLine(1000, b"a", 2), LoggedLine(1000, b"bb", 5), LoggedLine(1002, b"c", 7)]


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


def test_the_tail_of_a_log_without_line_ends_does_not_fill_the_memory(tmp_path: Path) -> None:
    """The log is from a progress bar that only writes carriage returns."""
    write(tmp_path, b"\rprogress" * 1_000_000)
    reader = LogReader(tmp_path, "train")
    assert peak_bytes(lambda: reader.seek_tail(10)) < 4 << 20


def test_the_tail_of_matching_lines_is_searched_from_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(20):
        write(tmp_path, b"".join(b"line %d %d\n" % (n, i) for i in range(20_000)), rotate_bytes=1 << 20)
    count = 0
    really = LogReader._read_at

    def counted(self: LogReader, offset: int, count_: int) -> bytes:
        nonlocal count
        count += len(data := really(self, offset, count_))
        return data

    monkeypatch.setattr(LogReader, "_read_at", counted)
    reader = LogReader(tmp_path, "train")
    reader.seek_tail(2, lambda line: line.text.endswith(b" 19999"))
    assert texts(list(reader.lines(final=True))) == [b"line 18 19999", b"line 19 19999"]
    assert count < 3 << 20


def test_lines_since_a_time_are_found_without_reading_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, *(b"%d\n" % n * 1000 for n in range(1000)), rotate_bytes=1 << 20)
    offsets: list[int] = []
    really = LogReader._read_at
    monkeypatch.setattr(LogReader, "_read_at", lambda self, *part: (offsets.append(part[0]), really(self, *part))[1])
    reader = LogReader(tmp_path, "train")
    reader.seek_time(1998)
    assert texts(list(reader.lines(final=True))) == [b"998"] * 1000 + [b"999"] * 1000
    size = sum(path.stat().st_size for path in tmp_path.glob("train.log*"))
    assert min(offsets) > size - 20_000


def test_reading_a_log_of_days_keeps_no_index_in_memory(tmp_path: Path) -> None:
    entries = b"".join(INDEX_ENTRY.pack(n * 100, 1000.0 + n) for n in range(200_000))
    (tmp_path / ".train.idx").write_bytes(entries)
    (tmp_path / "train.log").write_bytes((b"x" * 99 + b"\n") * 200_000)
    reader = LogReader(tmp_path, "train")

    def since() -> None:
        reader.seek_time(1000.0 + 199_998)
        assert [line.t for line in reader.lines(final=True)] == [1000.0 + 199_998, 1000.0 + 199_999]

    assert peak_bytes(since) < 4 << 20
    assert peak_bytes(lambda: LogReader(tmp_path, "train").seek_tail(10)) < 4 << 20


def test_times_stay_right_after_a_power_cut_lost_the_end_of_the_log(tmp_path: Path) -> None:
    write(tmp_path, b"one\n", b"two\n", b"three\n", b"four\n").close()
    with (tmp_path / "train.log").open("r+b") as f:
        f.truncate(8)
    clock = Clock(2000)
    writer = LogWriter(tmp_path, "train", clock=clock)
    write_all(writer, clock, [(2000.0, b"5\n"), (2001.0, b"6\n")])
    writer.close()
    assert [(line.t, line.text) for line in read(tmp_path)] == [
        (1000.0, b"one"),
        (1001.0, b"two"),
        (2000.0, b"5"),
        (2001.0, b"6"),
    ]


def test_reading_a_large_log_takes_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "train", rotate_bytes=1 << 20)
    for n in range(40):
        writer.write(b"%07d %s\n" % (n, b"x" * 990) * 130)
    counted = 0

    def count() -> None:
        nonlocal counted
        counted = sum(1 for _ in LogReader(tmp_path, "train").lines(final=True))

    assert peak_bytes(count) < 3 << 20
    assert counted == 40 * 130


def peak_bytes(call: object) -> int:
    assert callable(call)
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@settings(max_examples=20)
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


@st.composite
def clocks_and_pieces(draw: st.DrawFn) -> list[tuple[float, bytes]]:
    texts = st.binary(max_size=40).map(lambda data: data.replace(b"\1", b"\n"))
    times = st.floats(0, 100) if draw(st.booleans()) else st.sampled_from([10.0, 10.04, 20.0])
    written = draw(st.lists(st.tuples(times, texts), max_size=25))
    return written if draw(st.booleans()) else sorted(written, key=lambda one: one[0])


@settings(max_examples=50, deadline=None)
@given(
    written=clocks_and_pieces(),
    rotate_bytes=st.integers(1, 120),
    read_bytes=st.integers(1, 50),
    longest=st.integers(2, 30),
    since=st.none() | st.floats(-1, 101) | st.sampled_from([10.0, 10.04, 20.0]),
    tail=st.none() | st.integers(0, 6),
    pattern=st.none() | st.sampled_from([b"\0", b"\0\0", b"^$", b"[a-z]", b"^[\\x00-\\x80]"]),
    final=st.booleans(),
    data=st.data(),
)
def test_seeking_finds_exactly_the_lines_that_a_full_read_selects(
    tmp_path_factory: pytest.TempPathFactory,
    written: list[tuple[float, bytes]],
    rotate_bytes: int,
    read_bytes: int,
    longest: int,
    since: float | None,
    tail: int | None,
    pattern: bytes | None,
    final: bool,
    data: st.DataObject,
) -> None:
    """Whatever the clocks, rotations and blocks are, a reader that seeks loses no line, and repeats none."""
    directory = tmp_path_factory.mktemp("log")

    def is_wanted(line: LoggedLine) -> bool:
        return (since is None or line.t >= since) and (pattern is None or bool(re.search(pattern, line.text)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_files, "READ_BYTES", read_bytes)
        patch.setattr(log_files, "LONGEST_LINE", longest)
        clock = Clock()
        writer = LogWriter(directory, "train", rotate_bytes, clock)
        write_all(writer, clock, written)
        every = read(directory, final=final)
        first = data.draw(st.sampled_from([0, *(line.end for line in every)]))
        expected = [line for line in every if line.end > first and is_wanted(line)]
        words = pattern if pattern is not None and set(pattern) == {0} else b""
        reader = LogReader(directory, "train", first, words=words)
        end = reader.end(final=final)
        if since is not None:
            reader.seek_time(since, end)
        if tail is not None:
            reader.seek_tail(tail, is_wanted, end)
            expected = expected[len(expected) - min(tail, len(expected)) :]
        started = reader.offset
        assert [line for line in reader.lines(final=final, until=end) if is_wanted(line)] == expected
        again = LogReader(directory, "train", started, words=words).lines(final=final, until=end)
        assert [line for line in again if is_wanted(line)] == expected, "a broken connection continues here"
        if not final:
            write_all(writer, clock, [(200.0, b"rest\nlater\n")])
            new = [line for line in read(directory) if line.end > max(end, first) and is_wanted(line)]
            assert [line for line in reader.lines(final=True) if is_wanted(line)] == new
        writer.close()


def write_all(writer: LogWriter, clock: Clock, written: list[tuple[float, bytes]]) -> None:
    for clock.t, piece in written:
        writer.write(piece)


def rebuilt(lines: list[LoggedLine], whole: bytes) -> bytes:
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
