"""Shards hold every record once, whole and unchanged; and a failed split leaves nothing."""

from __future__ import annotations

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
from clusterctl.dispatch.split import split
from clusterctl.errors import ConfigError, RefusedError, UsageError


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
@settings(max_examples=100)
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
        shards = split(source, count, delimiter)
        assert [shard.path.name for shard in shards] == [f"f-{number:05d}" for number in range(count)]
        for number, shard in enumerate(shards):
            assert shard.path.read_bytes() == b"".join(expected[number::count])
            assert shard.bytes == shard.path.stat().st_size
            assert shard.records == len(expected[number::count])


def test_a_gz_file_is_unpacked_into_shards_of_its_name_without_gz(tmp_path: Path) -> None:
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress(b"1\n2\n3\n"))
    shards = split(tmp_path / "t.txt.gz", 2, b"\n", tmp_path / "new" / "place")
    assert [(shard.path.name, shard.path.read_bytes()) for shard in shards] == [
        ("t.txt-00000", b"1\n3\n"),
        ("t.txt-00001", b"2\n"),
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


@pytest.mark.parametrize("existing", ["t-00000", "t-00007"])
def test_existing_shards_are_neither_overwritten_nor_mixed_with_new_ones(tmp_path: Path, existing: str) -> None:
    (tmp_path / "t").write_bytes(b"1\n2\n")
    (tmp_path / existing).write_bytes(b"mine")
    with pytest.raises(RefusedError, match=existing):
        split(tmp_path / "t", 2, b"\n")
    assert {path.name for path in tmp_path.iterdir()} == {"t", existing}
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
    """A record of 300 MB, and an address space 150 MB larger than that of Python itself."""
    with (tmp_path / "t").open("wb") as f:
        f.write(b"a\n")
        f.truncate(300 << 20)
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom clusterctl.dispatch.split import split\n"
        "now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (now + (150 << 20),) * 2)\n"
        "print([s.bytes for s in split(Path('t'), 2, b'\\n')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == f"[2, {(300 << 20) - 2}]\n", done.stderr
    for path in tmp_path.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("text", "expected"),
    [(r"\n", b"\n"), (r"\n\n", b"\n\n"), (r"\0", b"\0"), (r"\x1e;", b"\x1e;"), (r"\\n", b"\\n"), ("ü", b"\xc3\xbc")],
)
def test_escapes_in_a_delimiter_are_decoded(text: str, expected: bytes) -> None:
    assert delimiter_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "\\", r"\q", r"\x1"])
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
    assert "data/t.txt-00000 to -00001: 3 records, 5 B; 1 or 2 per shard" in out
    assert 'SHARDS = ["t.txt-*"]' in out
    assert run(["split", "t.txt", "--count", "2", "-o", "data", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "refused"
    assert run(["split", "t.txt", "-n", "1", "--delimiter", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shards"] == [{"path": "t.txt-00000", "records": 2, "bytes": 5}]


@pytest.mark.parametrize(("name", "code"), [("missing", 2), (".", 2), ("t.bz2", 2)])
def test_a_file_that_cannot_be_split_is_exit_code_2(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.bz2").touch()
    assert run(["split", name, "--count", "2"]) == code
    assert name in capsys.readouterr().err
