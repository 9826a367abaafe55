"""train.py without a cluster: the shards it reads, the samples it makes of them, and that it learns."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from contract.template.conftest import Run


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


def test_trainers_on_the_same_node_share_its_shards_by_rank(programs: SimpleNamespace, tmp_path: Path) -> None:
    shards(tmp_path, *range(7))
    assert [numbers_read(programs, tmp_path, rank, 3) for rank in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]


def test_a_trainer_reads_all_shards_on_its_node_when_none_is_assigned_to_its_rank(
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


@pytest.mark.slow
def test_a_single_pass_beats_the_unigram_model_and_saves_a_model_that_neighbours_can_read(
    own_workspace: Path, run: Run
) -> None:
    assert run(own_workspace, "prepare_data.py").returncode == 0
    for path in own_workspace.glob("data/*.txt-*"):  # half of the text, so that it takes less time
        path.write_text("".join(path.read_text().splitlines(keepends=True)[::2]))
    done = run(own_workspace, "train.py", "--num_passes=1", "--use_gpu=0")
    assert done.returncode == 0, done.stderr
    match = re.search(r"pass 0: held-out perplexity ([\d.]+), unigram ([\d.]+)", done.stdout)
    assert match is not None, done.stdout
    assert 2 * float(match[1]) < float(match[2])
    assert "ignored: --use_gpu=0" in done.stdout
    shown = run(own_workspace, "neighbours.py", "output/pass-00000", "can", "nosuchword")
    assert re.search(r"^ +can  \S+ 0\.\d\d, ", shown.stdout), shown.stderr
    assert "nosuchword  is not in the dictionary" in shown.stdout


def test_training_works_without_held_out_text(own_workspace: Path, run: Run) -> None:
    data = own_workspace / "data"
    data.mkdir()
    (data / "words.txt").write_text("<unk>\n<s>\na\nb\n")
    (data / "train.txt-00000").write_text("a b a b\n" * 20)
    (data / "test.txt-00000").touch()
    done = run(own_workspace, "train.py", "--num_passes=1")
    assert done.returncode == 0, done.stderr
    assert "perplexity" not in done.stdout


def test_without_data_it_explains_how_to_prepare_it(own_workspace: Path, run: Run) -> None:
    done = run(own_workspace, "train.py")
    assert done.returncode == 1
    assert "run python prepare_data.py --shards 1" in done.stderr
    assert "Traceback" not in done.stderr
