"""Print the words whose learned vectors are closest to those of the given words.

    python neighbours.py model/model.safetensors
    python neighbours.py output/pass-00003 can must function

The model is a merged file or the directory of a saved model.
"""

import argparse
from pathlib import Path

import numpy as np

from clusterctl.runtime import load_model

DICTIONARY = Path(__file__).parent / "data" / "words.txt"
QUERIES = ["can", "must", "is", "are", "if", "function", "class", "list"]
FREQUENT = 600  # the candidates: rarer words occur too seldom for their vectors to have moved far


def neighbours(model, words_file, queries, k=5):
    """Return the `k` nearest of the frequent words by cosine: {query: [(word, cosine), ...]}, nearest first.

    `model` is a merged model file or the directory of a saved model. Queries that the model does not know are left out.
    """
    words = Path(words_file).read_text(encoding="utf-8").splitlines()
    ids, vectors = load_model(model)["word"]
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    row_of = {words[number]: row for row, number in enumerate(ids)}
    candidates = [word for word in words[:FREQUENT] if word in row_of and word[0].isalpha()]
    matrix = directions[[row_of[word] for word in candidates]]

    def nearest(query):
        cosines = matrix @ directions[row_of[query]]
        ranked = [(candidates[i], float(cosines[i])) for i in np.argsort(-cosines)]
        return [pair for pair in ranked if pair[0] != query][:k]

    return {query: nearest(query) for query in queries if query in row_of}


def main():
    parser = argparse.ArgumentParser(description="Print the nearest neighbours of words.")
    parser.add_argument("model", help="model.safetensors, or the directory of a saved model")
    parser.add_argument("words", nargs="*", default=QUERIES, help=f"default: {' '.join(QUERIES)}")
    parser.add_argument("--dictionary", default=DICTIONARY, help="default: data/words.txt next to this file")
    options = parser.parse_args()
    results = neighbours(options.model, options.dictionary, options.words)
    for word in options.words:
        near = (f"{other} {cosine:.2f}" for other, cosine in results.get(word, []))
        print(f"{word:>12}  {', '.join(near) or 'is not in the dictionary'}")


if __name__ == "__main__":
    main()
