"""The assignment of shards to nodes, and the warnings about patterns that match nothing."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.common.seal import COPIED_SHARDS
from clusterctl.common.shards import copied, described, is_directory_of_copies
from clusterctl.common.tree import DIRECTORY, FILE, Entry, check, order
from clusterctl.dispatch.shards import Shards, shard_number
from clusterctl.errors import ConfigError


def node(*ranks: int, copies: tuple[int, ...] = ()) -> Any:
    return SimpleNamespace(trainer_ranks=ranks, shard_copies=copies)


def entries(*paths: str) -> list[Entry]:
    return [Entry(path, FILE, 0o644, 0) for path in paths]


def paths(entries: list[Entry]) -> list[str]:
    return [entry.path for entry in entries]


TREE = ["train.py", "train_data/words", *(f"train_data/t.txt-{n:05d}" for n in range(5)), "test_data/t-00003"]


def test_a_shard_goes_to_its_number_modulo_trainers_and_everything_else_goes_everywhere() -> None:
    shards = Shards(entries(*TREE), ["train_data/t.*"], 2)
    common = ["train.py", "train_data/words"]
    numbers = [[0, 2, 4], [1, 3]]
    for rank in (0, 1):
        own = [f"train_data/t.txt-{n:05d}" for n in numbers[rank]]
        assert paths(shards.of(node(rank))) == [*common, *own, "test_data/t-00003"]
    assert paths(shards.of(node(0, 1))) == TREE
    assert paths(shards.of(node())) == [*common, "test_data/t-00003"]


def test_copies_of_the_shards_of_other_trainers_have_names_that_match_no_pattern() -> None:
    long = "d/" * 80 + "t-00001.csv"
    tree = sorted(["!first", *TREE, long], key=order)
    made = Shards(entries(*tree), ["t*-0000?", "*.csv"], 4).of(node(0, copies=(1, 3)))
    assert paths(made) == sorted(paths(made), key=order)
    copies = [entry for entry in made if entry.path.startswith(COPIED_SHARDS)]
    check(copies)
    found = {copied(one.path) for one in copies if one.kind == FILE}
    assert found == {(1, TREE[3]), (1, long), (3, TREE[5]), (3, TREE[-1])}
    assert all(is_directory_of_copies(one.path) == (one.kind == DIRECTORY) for one in copies)
    assert {described(one.path) for one in copies if one.kind == FILE} >= {f"{TREE[3]} (copy for trainer 1)"}
    assert not [one for one in copies if any(name in one.path for name in ("t-", "t.", "csv", "data"))]
    assert max(len(part) for one in copies for part in one.path.split("/")) <= 255


def test_a_trainer_without_shards_has_an_empty_directory_of_copies() -> None:
    tree = entries("t-0")
    assert paths(Shards(tree, ["t*"], 4).of(node(0, copies=(3,)))) == [COPIED_SHARDS, f"{COPIED_SHARDS}/3", "t-0"]
    assert paths(Shards(tree, ["a*"], 4).of(node(0, copies=(3,)))) == ["t-0"]


def test_a_pattern_without_a_slash_matches_names_in_any_directory() -> None:
    assert paths(Shards(entries(*TREE), ["t*-0000?"], 4).of(node(0))) == [*TREE[:3], TREE[6]]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("train.txt-00003", 3),
        ("part-3.csv.gz", 3),
        ("part-00012.tar.7z", 12),
        ("2021-01-05.csv", 5),
        ("d/1/x7", 7),
    ],
)
def test_the_number_is_the_last_one_before_the_file_extensions(name: str, number: int) -> None:
    assert shard_number(name) == number


def test_a_shard_without_a_number_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match="'train_data/words' matches SHARDS"):
        Shards(entries(*TREE), ["train_data/*"], 2)


def test_a_pattern_that_matches_nothing_is_reported_with_a_suggestion() -> None:
    patterns = ["t.txt-*", "data/t.txt-*", "train_dota/t.txt-0000?", "xyz"]
    tree = [*entries(*TREE), Entry("xyz", DIRECTORY, 0o755, 0)]
    assert Shards(tree, patterns, 2).unmatched() == [
        "SHARDS: 'data/t.txt-*' matches no file in the workspace; did you mean 'train_data/t.txt-*'?",
        "SHARDS: 'train_dota/t.txt-0000?' matches no file in the workspace; did you mean 'train_data/t.txt-0000?'?",
        "SHARDS: 'xyz' matches no file in the workspace",
    ]
    assert Shards(entries("train-1"), ["trian-*"], 1).unmatched()[0].endswith("; the closest is 'train-1'")
    assert Shards(tree, [], 2).unmatched() == []


@pytest.mark.parametrize(
    ("pattern", "path", "better"),
    [
        ("train.txt-*", "data/train-00000.txt", "train-*.txt"),
        ("data/train.txt-*", "data/train-00000.txt", "data/train-*.txt"),
        ("*.csv-0000?", "a-00003.csv", "a-*.csv"),
        ("t.csv.gz-*", "t-00003.csv.gz", "t-*.csv.gz"),
    ],
)
def test_a_pattern_that_matches_nothing_but_the_other_spelling_of_a_shard_is_an_error(
    pattern: str, path: str, better: str
) -> None:
    shards = Shards(entries(path, "train.py"), ["x-*", pattern], 2)
    with pytest.raises(ConfigError, match=re.escape(path)) as error:
        shards.check_spelling()
    assert error.value.hint == f'set SHARDS = ["x-*", "{better}"], or rename the files'
    Shards(entries(path), ["x-*", better], 2).check_spelling()
    Shards(entries(path), ["x-*", pattern, better], 2).check_spelling()  # nothing goes to every node


def test_only_shards_have_another_spelling() -> None:
    tree = entries("train-log.txt", "train.txt", "retrain-00000.txt", "train-00000")
    Shards(tree, ["train.txt-*", "data/train.txt-*", "other"], 2).check_spelling()


def test_trainers_whose_nodes_get_no_shard_are_reported() -> None:
    shards = Shards(entries(*TREE[:4]), ["t.txt-*"], 4)  # numbers 0 and 1
    (warning,) = shards.too_few([node(0), node(1), node(2), node(3)])
    assert warning.splitlines() == [
        "SHARDS: there are only 2 shards, and the nodes of 2 of 4 trainers get none: trainers 2,3",
        "  to make a shard for every trainer: clusterctl split FILE --count 4",
    ]
    (warning,) = Shards(entries("a-2"), ["a-*"], 3).too_few([node(0), node(1), node(2)])
    assert "only 1 shard, and the nodes of 2 of 3 trainers get none: trainers 0,1" in warning


def test_a_trainer_that_shares_its_node_with_the_owner_of_a_shard_has_data() -> None:
    shards = Shards(entries(*TREE[:4]), ["t.txt-*"], 4)
    assert shards.too_few([node(0, 2), node(1, 3), node()]) == []
    assert Shards(entries("train.py"), ["t.txt-*"], 2).too_few([node(0), node(1)]) == []
