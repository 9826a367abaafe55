"""Neighbours in a model with made-up vectors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clusterctl.runtime import SGD, connect, zeros

VECTORS = {
    "<unk>": (1.0, 0.0),
    "<s>": (1.0, 0.0),
    "north": (0.0, 1.0),
    ".": (0.0, 1.0),
    "unseen": None,
    "up": (0.1, 5.0),
    "east": (3.0, 0.0),
    "northeast": (1.0, 1.0),
    "south": (0.0, -1.0),
}


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with words.txt and a saved model in which each word has its vector of VECTORS."""
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in VECTORS))
    monkeypatch.setenv("CLUSTERCTL_OUTPUT_DIR", str(tmp_path / "output"))
    known = [(number, vector) for number, vector in enumerate(VECTORS.values()) if vector]
    ids, vectors = np.array([number for number, _ in known]), np.array([v for _, v in known], np.float32)
    with connect() as ps:
        table = ps.embedding("word", dim=2, rule=SGD(1.0), init=zeros(), rows=len(VECTORS))
        for _ in ps.steps(lambda pass_, rng: [0], passes=1):
            ps.push({table: (ids, -vectors)}, samples=1)
    return tmp_path


def test_neighbours_are_sorted_by_cosine_and_exclude_the_word_itself_and_punctuation(
    programs: SimpleNamespace, saved: Path
) -> None:
    model, words = saved / "output" / "pass-00000", saved / "words.txt"
    result = programs.neighbours.neighbours(model, words, ["north"], k=3)
    assert [word for word, _ in result["north"]] == ["up", "northeast", "east"]
    cosines = [cosine for _, cosine in result["north"]]
    assert cosines == pytest.approx([5 / np.sqrt(25.01), np.sqrt(0.5), 0.0], abs=1e-6)


def test_words_unknown_to_the_model_are_left_out(programs: SimpleNamespace, saved: Path) -> None:
    model, words = saved / "output" / "pass-00000", saved / "words.txt"
    result = programs.neighbours.neighbours(model, words, ["unseen", "nowhere", "south"])
    assert list(result) == ["south"]
    assert len(result["south"]) == 4
