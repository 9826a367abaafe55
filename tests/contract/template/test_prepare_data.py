"""The prepared data is reproducible and evenly distributed, and no test text is in the training data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from contract.template.conftest import Run


def lines(folder: Path, kind: str) -> list[str]:
    return [line for path in sorted(folder.glob(f"{kind}.txt-*")) for line in path.read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def data(programs: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    programs.prepare_data.prepare(folder, 4)
    return folder


def test_two_processes_with_different_hash_seeds_write_the_same_bytes(
    workspace: Path, tmp_path: Path, run: Run
) -> None:
    for seed in ("1", "2"):
        argv = ("prepare_data.py", "--shards", "4", "--out", str(tmp_path / seed))
        done = run(workspace, *argv, PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_one_paragraph_in_ten_is_held_out_and_none_occurs_twice(data: Path) -> None:
    train, test = lines(data, "train"), lines(data, "test")
    assert len(test) > 150
    assert len(test) == (len(train) + len(test)) // 10
    assert len(train + test) == len({*train, *test}), "also no test paragraph is in the training text"


@pytest.mark.parametrize("kind", ["train", "test"])
def test_shards_differ_in_words_by_at_most_one_paragraph(data: Path, kind: str) -> None:
    sizes = [len(path.read_text().split()) for path in data.glob(f"{kind}.txt-*")]
    longest = max(len(line.split()) for line in lines(data, kind))
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= longest


def test_the_number_of_shards_changes_neither_the_text_nor_the_dictionary_and_no_old_shard_is_left(
    programs: SimpleNamespace, data: Path, tmp_path: Path
) -> None:
    for shards in (5, 3):
        programs.prepare_data.prepare(tmp_path, shards)
        assert len(list(tmp_path.iterdir())) == 1 + 2 * shards
    assert sorted(lines(tmp_path, "train")) == sorted(lines(data, "train"))
    assert sorted(lines(tmp_path, "test")) == sorted(lines(data, "test"))
    assert (tmp_path / "words.txt").read_bytes() == (data / "words.txt").read_bytes()


def test_the_dictionary_has_the_words_seen_twice_in_training_by_frequency(data: Path) -> None:
    words = (data / "words.txt").read_text().splitlines()
    counts = Counter(word for line in lines(data, "train") for word in line.split())
    assert words[:2] == ["<unk>", "<s>"]
    assert len(words) == len(set(words))
    assert set(words[2:]) == {word for word, count in counts.items() if count >= 2}
    seen = [counts[word] for word in words[2:]]
    assert seen == sorted(seen, reverse=True)


def test_tables_and_rules_of_the_markup_yield_no_words(programs: SimpleNamespace) -> None:
    text = 'The "Table"\n***********\n\n+-----+---+\n| key | x |\n+=====+===+\n  | v | y |\nis  over.'
    assert programs.prepare_data.split_words(text) == ("the", "table", "is", "over", ".")


def test_fewer_than_one_shard_is_refused_with_a_reason(workspace: Path, run: Run) -> None:
    done = run(workspace, "prepare_data.py", "--shards", "0")
    assert done.returncode == 2
    assert "at least 1" in done.stderr
