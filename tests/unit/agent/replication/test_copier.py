"""Copies of pieces: whole or not at all, taken up again where they broke off, and never on the last space of a disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.replication import copier
from clusterctl.agent.replication.copier import CopyOrder, Fetcher, copy_save, need_room
from clusterctl.common.file_transfer import TransferError
from clusterctl.transfer.protocol import PieceGoneError
from unit.transfer.served import CONTENT, DIGEST, JOB, PIECE, Served, two_nodes

FILE = {"file": PIECE.file, "pserver": 0, "bytes": len(CONTENT), "sha256": DIGEST, "node": 1}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with two_nodes(tmp_path) as both:
        yield both


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "RETRY_S", 0.0)


def order(served: Served, *files: dict[str, Any], sources: dict[int, str] | None = None) -> CopyOrder:
    """Write the manifest on node 1, which leads here, and return the order for node 2."""
    about = {"v": 1, "job": JOB, "run": "0001", "tag": PIECE.tag, "step": 3, "files": list(files or (FILE,))}
    text = json.dumps(about).encode()
    (served.one.job.output / PIECE.tag / "manifest.json").write_bytes(text)
    places = {1: served.place} if sources is None else sources
    return CopyOrder(PIECE.tag, False, len(text), hashlib.sha256(text).hexdigest(), (1, served.place), places)


def copies(served: Served) -> list[str]:
    directory = served.two.copies / PIECE.tag
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def test_the_manifest_and_the_pieces_of_the_sources_are_copied(served: Served) -> None:
    assert copy_save(served.two, order(served)) == len(CONTENT)
    assert copies(served) == ["manifest.json", PIECE.file]
    assert (served.two.copies / PIECE.tag / PIECE.file).read_bytes() == CONTENT
    assert copy_save(served.two, order(served)) == len(CONTENT), "which is there already"


def test_what_a_lost_node_wrote_comes_from_one_that_has_a_copy(served: Served) -> None:
    """Node 7 is lost, and node 1 has what it wrote. The node that answers is checked by its certificate."""
    wanted = order(served, {**FILE, "node": 7}, sources={7: served.place})
    with pytest.raises(TransferError):
        copy_save(served.two, wanted)
    assert copy_save(served.two, wanted._replace(held_by={7: 1})) == len(CONTENT)
    assert copies(served) == ["manifest.json", PIECE.file]


def test_without_sources_only_the_manifest_comes(served: Served) -> None:
    assert copy_save(served.two, order(served, sources={})) == 0
    assert copies(served) == ["manifest.json"]


def test_a_part_that_an_earlier_attempt_left_is_used(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    stream = copier.PieceClient.stream

    def watched(self: Any, piece: Any, start: int, stop: int, **how: Any) -> Any:
        asked.append((piece.file, start))
        return stream(self, piece, start, stop, **how)

    monkeypatch.setattr(copier.PieceClient, "stream", watched)
    directory = served.two.copies / PIECE.tag
    directory.mkdir(parents=True)
    (directory / f".{PIECE.file}-part").write_bytes(CONTENT[:500_000])
    copy_save(served.two, order(served))
    assert (PIECE.file, 500_000) in asked
    assert (directory / PIECE.file).read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"other" * 200_000, b"x"])
def test_a_part_with_other_bytes_costs_one_more_attempt(served: Served, left: bytes) -> None:
    directory = served.two.copies / PIECE.tag
    directory.mkdir(parents=True)
    (directory / f".{PIECE.file}-part").write_bytes(left)
    copy_save(served.two, order(served))
    assert (directory / PIECE.file).read_bytes() == CONTENT


def test_a_connection_that_breaks_is_made_again_as_long_as_something_comes(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = copier.PieceClient.stream
    breaks = []

    def broken(self: Any, piece: Any, start: int, stop: int, **how: Any) -> Any:
        parts = stream(self, piece, start, stop, **how)
        yield next(parts)
        if piece.file == PIECE.file:
            breaks.append(start)
            raise TransferError("node1: the connection broke")
        yield from parts

    monkeypatch.setattr(copier.PieceClient, "stream", broken)
    copy_save(served.two, order(served))
    assert len(breaks) > 2
    assert (served.two.copies / PIECE.tag / PIECE.file).read_bytes() == CONTENT


def test_a_node_that_is_away_is_tried_a_few_times(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def refuse(self: Any, *arguments: Any) -> None:
        tries.append(arguments)
        raise TransferError("node1: Connection refused")

    monkeypatch.setattr(copier.PieceClient, "__init__", refuse)
    with pytest.raises(TransferError, match="Connection refused"):
        copy_save(served.two, order(served))
    assert len(tries) == copier.ATTEMPTS
    with pytest.raises(TransferError, match="node7 is not there"):
        Fetcher(served.two, {}).fetch(PIECE, 7, served.two.dir)


def test_damaged_bytes_never_get_the_name_of_a_piece(served: Served) -> None:
    path = served.one.job.output / PIECE.tag / PIECE.file
    path.write_bytes(os.urandom(len(CONTENT)))
    with pytest.raises(TransferError, match="arrived damaged"):
        copy_save(served.two, order(served))
    assert copies(served) == ["manifest.json"]


def test_what_was_removed_in_the_meantime_leaves_nothing_behind(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_order = order(served)
    original = served.one.job.output / PIECE.tag
    (original / PIECE.file).rename(original / "aside")
    with pytest.raises(PieceGoneError):
        copy_save(served.two, the_order)
    assert copies(served) == ["manifest.json"], "only one piece is lost"
    (original / "aside").rename(original / PIECE.file)
    stream = copier.PieceClient.stream

    def after_removal(self: Any, piece: Any, start: int, stop: int, **how: Any) -> Any:
        if piece.file == PIECE.file:
            for path in list(original.iterdir()):
                path.unlink()
        return stream(self, piece, start, stop, **how)

    monkeypatch.setattr(copier.PieceClient, "stream", after_removal)
    with pytest.raises(PieceGoneError):
        copy_save(served.two, the_order)
    assert copies(served) == []


def test_a_source_that_fails_costs_no_copies_of_the_others(served: Served) -> None:
    lost = {**FILE, "file": "pserver-00001.safetensors", "node": 1}
    with pytest.raises(PieceGoneError):
        copy_save(served.two, order(served, lost, FILE))
    assert copies(served) == ["manifest.json", PIECE.file]


def test_a_model_and_a_checkpoint_of_one_tag_do_not_overwrite_each_other(served: Served) -> None:
    copy_save(served.two, order(served))
    with pytest.raises(ValueError, match="a model and a checkpoint have this tag"):
        copy_save(served.two, order(served)._replace(checkpoint=True))
    assert copies(served) == ["manifest.json", PIECE.file]


@pytest.mark.parametrize(
    ("needed_mb", "free_mb", "spare"),
    [(0.2, 65, "64 MB"), (10, 111, "100 MB"), (200, 1201, "1,000 MB"), (50_000, 51_001, "1,000 MB")],
)
def test_copies_leave_ten_times_their_size_but_64_mb_to_1_gb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed_mb: float, free_mb: int, spare: str
) -> None:
    class Disk:
        f_bavail, f_frsize = free_mb * 1000, 1000

    monkeypatch.setattr(os, "statvfs", lambda path: Disk)
    need_room(tmp_path, int(needed_mb * 1e6))
    Disk.f_bavail = int(needed_mb * 1000) + int(spare.split(maxsplit=1)[0].replace(",", "")) * 1000 - 1
    with pytest.raises(OSError, match=rf"no room: {needed_mb:,.0f} MB are needed and {spare} to spare, but .* free"):
        need_room(tmp_path, int(needed_mb * 1e6))
    need_room(tmp_path, 0)


@pytest.mark.parametrize("file", [{"file": "../x"}, {"bytes": -5}, {"bytes": "9"}, {"sha256": None}, {"node": "1"}])
def test_a_manifest_with_anything_else_is_not_followed(served: Served, file: dict[str, Any]) -> None:
    count = 0
    with contextlib.suppress(ValueError, TypeError):
        count = copy_save(served.two, order(served, {**FILE, **file}))
    assert count == 0
    assert set(copies(served)) <= {"manifest.json"}
