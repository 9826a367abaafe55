"""Shards hold every record once, whole and unchanged; and a failed split leaves nothing."""

from __future__ import annotations

import fnmatch
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.cli.app import run
from clusterctl.cli.commands.split import delimiter_bytes
from clusterctl.dispatch import split as module
from clusterctl.dispatch.shards import shard_number
from clusterctl.dispatch.split import ShardName, split
from clusterctl.errors import ConfigError, RefusedError, UsageError


def write_two_lines(path: Path) -> None:
    """Write the lines `1` and `2`, packed if the name says so."""
    path.write_bytes(gzip.compress(b"1\n2\n") if path.suffix == ".gz" else b"1\n2\n")


def records_of(data: bytes, delimiter: bytes) -> list[bytes]:
    """Return the records by the simple method, all in memory."""
    *whole, rest = data.split(delimiter)
    return [record + delimiter for record in whole] + ([rest] if rest else [])


@given(
    st.lists(st.sampled_from([b"a", b"b", b"ab", b"\n", b"\n\n", b"\0", b"long " * 7]), max_size=40).map(b"".join),
    st.sampled_from([b"\n", b"\n\n", b"a", b"aa", b"ab", b"aba", b"\0"]),
    st.integers(1, 7),
    st.integers(1, 9),
)
@settings(max_examples=25)
def test_record_i_is_in_shard_i_mod_count_at_any_block_size(
    data: bytes, delimiter: bytes, count: int, block: int
) -> None:
    expected = records_of(data, delimiter)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "READ_BYTES", block)
        patch.setattr(module, "BUFFERED_BYTES", 3 * count)
        source = Path(name, "f")
        source.write_bytes(data)
        if len(expected) < count:
            with pytest.raises(UsageError, match=f"{len(expected)} record"):
                split(source, count, delimiter)
            assert list(Path(name).iterdir()) == [source]
            return
        shards, _ = split(source, count, delimiter)
        assert [shard.path.name for shard in shards] == [f"f-{number:05d}" for number in range(count)]
        for number, shard in enumerate(shards):
            assert shard.path.read_bytes() == b"".join(expected[number::count])
            assert shard.bytes == shard.path.stat().st_size
            assert shard.records == len(expected[number::count])


def test_a_gz_file_is_unpacked_into_shards_of_its_name_without_gz(tmp_path: Path) -> None:
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress(b"1\n2\n3\n"))
    shards, _ = split(tmp_path / "t.txt.gz", 2, b"\n", tmp_path / "new" / "place")
    assert [(shard.path.name, shard.path.read_bytes()) for shard in shards] == [
        ("t-00000.txt", b"1\n3\n"),
        ("t-00001.txt", b"2\n"),
    ]


@pytest.mark.parametrize(
    "data",
    [b"plain", gzip.compress(b"1\n" * 9999)[:-9], gzip.compress(b"1\n")[:12] + b"\xff" * 9],
    ids=["plain", "cut off", "damaged"],  # the bytes contain the time
)
def test_an_invalid_or_damaged_gz_file_is_named_in_the_error_and_leaves_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.gz").write_bytes(data)
    with pytest.raises(ConfigError, match=r"cannot read .*t\.gz"):
        split(tmp_path / "t.gz", 1, b"\n", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [tmp_path / "t.gz"]


@pytest.mark.parametrize(
    ("source", "existing"),
    [
        ("t", "t-00000"),
        ("t.csv", "t.csv-00007"),  # the spelling of earlier versions
        ("t.csv", "t-00007.csv"),
    ],
)
def test_existing_shards_are_neither_overwritten_nor_mixed_with_new_ones(
    tmp_path: Path, source: str, existing: str
) -> None:
    write_two_lines(tmp_path / source)
    (tmp_path / existing).write_bytes(b"mine")
    with pytest.raises(RefusedError, match=existing):
        split(tmp_path / source, 2, b"\n")
    assert {path.name for path in tmp_path.iterdir()} == {source, existing}
    assert (tmp_path / existing).read_bytes() == b"mine"


def test_shards_that_appear_during_the_split_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").write_bytes(b"1\n2\n")
    write = module._ShardWriter.write

    def write_with_a_competitor(self: module._ShardWriter, *args: object) -> None:
        write(self, *args)  # type: ignore[arg-type]
        (tmp_path / "t-00001").write_bytes(b"theirs")

    monkeypatch.setattr(module._ShardWriter, "write", write_with_a_competitor)
    with pytest.raises(RefusedError, match="t-00001"):
        split(tmp_path / "t", 2, b"\n")
    assert {path.name for path in tmp_path.iterdir()} == {"t", "t-00001"}


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("t.csv", "t-00000.csv"),
        ("t.csv.gz", "t-00000.csv"),
        ("t", "t-00000"),
        ("log.2024", "log.2024-00000"),
        (".hidden", ".hidden-00000"),
    ],
)
def test_a_shard_keeps_the_ending_of_its_file_and_its_number_is_read_back(
    tmp_path: Path, name: str, first: str
) -> None:
    write_two_lines(tmp_path / name)
    shards, _ = split(tmp_path / name, 2, b"\n")
    assert shards[0].path.name == first
    assert shard_number(str(shards[1].path)) == 1
    assert fnmatch.fnmatchcase(first, ShardName.of(tmp_path / name).pattern)


def test_a_header_begins_every_shard_and_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id,age\r\n1,20\r\n2,30\r\n3,40")
    shards, warnings = split(tmp_path / "t.csv", 2, b"\n", has_a_header=True)
    assert [(shard.path.read_bytes(), shard.records, shard.bytes) for shard in shards] == [
        (b"id,age\r\n1,20\r\n3,40", 2, 18),
        (b"id,age\r\n2,30\r\n", 1, 14),
    ]
    assert warnings == []


@pytest.mark.parametrize("block", [1, 7])
def test_a_header_is_found_at_any_block_size_and_a_file_of_a_header_has_no_records(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_BYTES", block)
    (tmp_path / "t").write_bytes(b"aab--1--2--3")
    shards, _ = split(tmp_path / "t", 3, b"--", tmp_path / "out", has_a_header=True)
    assert [shard.path.read_bytes() for shard in shards] == [b"aab--1--", b"aab--2--", b"aab--3"]
    (tmp_path / "t").write_bytes(b"aab--")
    with pytest.raises(UsageError, match="0 record"):
        split(tmp_path / "t", 1, b"--", tmp_path / "none", has_a_header=True)
    (tmp_path / "t").write_bytes(b"aab")
    with pytest.raises(UsageError, match="not a header"):
        split(tmp_path / "t", 1, b"--", tmp_path / "none", has_a_header=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("block", [1, 100])
def test_a_header_of_exactly_the_limit_is_taken_and_a_longer_one_is_refused(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_BYTES", block)
    monkeypatch.setattr(module, "MOST_HEADER_BYTES", 10)
    (tmp_path / "t").write_bytes(b"id,age,by\n1,20,x\n")
    [shard], _ = split(tmp_path / "t", 1, b"\n", tmp_path / "out", has_a_header=True)
    assert (shard.records, shard.path.read_bytes()) == (1, b"id,age,by\n1,20,x\n")
    (tmp_path / "t").write_bytes(b"id,age,byte\n1,20,x\n")
    with pytest.raises(UsageError, match="not a header"):
        split(tmp_path / "t", 1, b"\n", tmp_path / "none", has_a_header=True)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.csv", b"customer_id,tenure,churned\n7590,1,0\n5575,34,1\n"),
        ("t.csv", b'\xef\xbb\xbf"Total charges ($)";"Tenure"\r\n1;2\r\n'),
        ("t.csv", b",a,b\n0,1,2\n"),
        ("t.tsv", b"query\tdocument\nwhat is it\tit is this\n"),
        ("t.txt", b"user film stars\n1 2 3\n4 5 6"),
    ],
)
def test_a_first_record_that_looks_like_a_header_is_a_warning(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    (warning,) = split(tmp_path / name, 1, b"\n").warnings
    assert warning.startswith("the first record looks like a header")
    (tmp_path / name).write_bytes(data + data.splitlines()[-1] + b"\n")
    assert split(tmp_path / name, 1, b"\n", tmp_path / "out", has_a_header=True).warnings == []


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.csv", b"cat,3.5\ndog,2.5\n"),
        ("t.csv", b"spam,Win a prize\nham,hi\nspam,Win more\n"),
        ("t.txt", b"It was a dark night\nand it rained\n"),
        ("t.jsonl", b'{"a": 1}\n{"a": 2}\n'),
        ("t.svm", b"+1 3:1 4:1\n-1 2:1 9:1\n"),
        ("t.bin", b"ab\0cd\n1\n"),
    ],
)
def test_records_without_a_header_are_no_warning(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert split(tmp_path / name, 1, b"\n").warnings == []


def test_a_quoted_field_of_several_lines_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b'1,"two\nlines"\n2,"one ""quoted"" line"\n')
    (warning,) = split(tmp_path / "t.csv", 2, b"\n").warnings
    assert warning.startswith("a quoted field seems to go on in the next line")


def program(*args: str, cwd: Path, largest_file: int = -1) -> subprocess.Popen[str]:
    code = (
        f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file}, {largest_file}))\n"
        "from clusterctl.cli import main\nmain()"
    )
    command = [sys.executable, "-c", code, "split", *args]
    return subprocess.Popen(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"1234567\n" * 50_000)
    with program("t", "--count", "2", "-o", "out", cwd=tmp_path, largest_file=100_000) as process:
        _, err = process.communicate(timeout=180)
    assert process.returncode == 2
    assert "cannot write shards into out: File too large" in err
    assert list(tmp_path.iterdir()) == [tmp_path / "t"]


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    """The input is a pipe that delivers one record and then waits, so the split is certainly in progress."""
    os.mkfifo(tmp_path / "t")
    with program("t", "--count", "2", "-o", "out", cwd=tmp_path) as process, (tmp_path / "t").open("wb") as pipe:
        pipe.write(b"x" * (2 << 20))  # more than a pipe and a block hold: once this returns, some of it is split
        pipe.flush()
        assert list((tmp_path / "out").glob(".split-*/00000"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_a_record_larger_than_memory_is_streamed(tmp_path: Path) -> None:
    """A record of 160 MB, and an address space 100 MB larger than that of Python itself."""
    with (tmp_path / "t").open("wb") as f:
        f.write(b"a\n")
        f.truncate(160 << 20)
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom clusterctl.dispatch.split import split\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + (100 << 20),) * 2)\n"
        "print([s.bytes for s in split(Path('t'), 2, b'\\n').shards])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == f"[2, {(160 << 20) - 2}]\n", done.stderr
    for path in tmp_path.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("text", "expected"),
    [(r"\n\n", b"\n\n"), (r"\0", b"\0"), (r"\x1e;", b"\x1e;"), (r"\\n", b"\\n"), ("ü", b"\xc3\xbc")],
)
def test_escapes_in_a_delimiter_are_decoded(text: str, expected: bytes) -> None:
    assert delimiter_bytes(text) == expected


@pytest.mark.parametrize("text", ["", r"\q", r"\x1"])
def test_an_invalid_delimiter_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--delimiter"):
        delimiter_bytes(text)


def test_the_command_prints_the_shards_and_the_setting_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_bytes(b"1\n2\n3")
    assert run(["split", "t.txt", "--count", "2", "-o", "data"]) == 0
    out = capsys.readouterr().out
    assert "data/t-00000.txt to -00001.txt: 3 records, 5 B; 1 or 2 per shard" in out
    assert 'SHARDS = ["t-*.txt"]' in out
    assert run(["split", "t.txt", "--count", "2", "-o", "data", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "refused"
    assert run(["split", "t.txt", "-n", "1", "--delimiter", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shards"] == [{"path": "t-00000.txt", "records": 2, "bytes": 5}]


@pytest.mark.parametrize(("name", "code"), [("missing", 2), ("t.bz2", 2)])
def test_a_file_that_cannot_be_split_is_exit_code_2(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.bz2").touch()
    assert run(["split", name, "--count", "2"]) == code
    assert name in capsys.readouterr().err
