"""train.py without a cluster: which shards it reads, what it makes of them, and that it learns."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from template.conftest import Run


@pytest.fixture
def own_workspace(workspace: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(workspace, tmp_path / "own", ignore=shutil.ignore_patterns("data", "output")))


def shards(folder: Path, *numbers: int) -> Path:
    for number in numbers:
        (folder / f"train.txt-{number:05d}").touch()
    return folder


def numbers_read(programs: SimpleNamespace, folder: Path, rank: int, trainers: int) -> list[int]:
    session = SimpleNamespace(rank=rank, trainers=trainers)
    return [int(path.name[-5:]) for path in programs.train.own_shards(folder, "train", session)]


def test_trainers_that_share_a_node_share_its_shards_by_rank(programs: SimpleNamespace, tmp_path: Path) -> None:
    shards(tmp_path, *range(7))
    assert [numbers_read(programs, tmp_path, rank, 3) for rank in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]


def test_a_trainer_alone_reads_every_shard(programs: SimpleNamespace, tmp_path: Path) -> None:
    assert numbers_read(programs, shards(tmp_path, 0, 1, 2, 3), 0, 1) == [0, 1, 2, 3]


def test_a_trainer_takes_what_is_on_its_node_when_none_is_dealt_to_its_rank(
    programs: SimpleNamespace, tmp_path: Path
) -> None:
    assert numbers_read(programs, shards(tmp_path, 5), 2, 4) == [5]


def test_every_word_is_predicted_once_from_the_four_before_it(programs: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "train.txt-00000"
    path.write_text("a b c\n\nb z\n")
    ngrams = programs.train.read_ngrams([path], {"<unk>": 0, "<s>": 1, "a": 2, "b": 3, "c": 4})
    expected = [[1, 1, 1, 1, 2], [1, 1, 1, 2, 3], [1, 1, 2, 3, 4], [1, 1, 1, 1, 3], [1, 1, 1, 3, 0]]
    np.testing.assert_array_equal(ngrams, expected)
    assert ngrams.dtype == np.int64


def test_the_unigram_loss_adds_one_to_the_count_of_every_word(programs: SimpleNamespace) -> None:
    ngrams, held_out = np.zeros((3, 5), np.int64), np.zeros((2, 5), np.int64)
    ngrams[:, 4], held_out[:, 4] = [2, 2, 3], [2, 0]
    expected = -(np.log(3 / 7) + np.log(1 / 7)) / 2
    assert programs.train.unigram_loss(ngrams, held_out, 4) == pytest.approx(expected)


def test_one_pass_alone_beats_the_unigram_model_and_leaves_a_model_that_neighbours_reads(
    own_workspace: Path, run: Run
) -> None:
    assert run(own_workspace, "prepare_data.py").returncode == 0
    ended = run(own_workspace, "train.py", "--num_passes=1", "--use_gpu=0")
    assert ended.returncode == 0, ended.stderr
    found = re.search(r"pass 0: held-out perplexity ([\d.]+), unigram ([\d.]+)", ended.stdout)
    assert found is not None, ended.stdout
    assert 2 * float(found[1]) < float(found[2])
    assert "ignored: --use_gpu=0" in ended.stdout
    shown = run(own_workspace, "neighbours.py", "output/pass-00000", "can", "nosuchword")
    assert re.search(r"^ +can  \S+ 0\.\d\d, ", shown.stdout), shown.stderr
    assert "nosuchword  is not in the dictionary" in shown.stdout


def test_training_goes_on_without_held_out_text(own_workspace: Path, run: Run) -> None:
    data = own_workspace / "data"
    data.mkdir()
    (data / "words.txt").write_text("<unk>\n<s>\na\nb\n")
    (data / "train.txt-00000").write_text("a b a b\n" * 20)
    (data / "test.txt-00000").touch()
    ended = run(own_workspace, "train.py", "--num_passes=1")
    assert ended.returncode == 0, ended.stderr
    assert "perplexity" not in ended.stdout


def test_without_data_it_says_how_to_make_it(own_workspace: Path, run: Run) -> None:
    ended = run(own_workspace, "train.py")
    assert ended.returncode == 1
    assert "run python prepare_data.py --shards 1" in ended.stderr
    assert "Traceback" not in ended.stderr
