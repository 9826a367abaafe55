"""Train the language model of model.py, alone or as one of the trainers of a clusterctl job.

    python train.py --num_passes 4

It reads data/words.txt and this trainer's shards of data/train.txt-* and data/test.txt-*; prepare_data.py makes them.
After each pass it prints the perplexity of its held-out text, next to that of a unigram model, which guesses each word
by its frequency alone. Unknown options are ignored.
"""

import argparse
from pathlib import Path

import numpy as np

from clusterctl.runtime import Adagrad, connect, uniform
from model import CONTEXT, EMBEDDING, HIDDEN, NgramModel, Weights

DATA = Path(__file__).parent / "data"
UNKNOWN, START = 0, 1  # ids, as prepare_data.py writes the dictionary
LOG_EVERY = 20  # steps


class Trainer:
    """The model's tables on the parameter servers, and the work on a batch.

    A batch is an int64 array (n, CONTEXT + 1): the ids of n contexts, each followed by the word to predict.
    """

    def __init__(self, ps, words, batch_size, learning_rate):
        rule = Adagrad(learning_rate)
        self.ps = ps
        self.batch_size = batch_size
        self.model = NgramModel(batch_size, words)
        self.vectors = ps.embedding("word", dim=EMBEDDING, rows=words, rule=rule, init=uniform(0.1))
        self.tables = Weights(
            ps.dense("hidden.w", shape=(CONTEXT * EMBEDDING, HIDDEN), rule=rule, init=uniform(0.1)),
            ps.dense("hidden.b", shape=HIDDEN, rule=rule),
            ps.dense("output.w", shape=(HIDDEN, words), rule=rule, init=uniform(0.05)),
            ps.dense("output.b", shape=words, rule=rule),
        )

    def weights(self):
        return Weights(*(table.value for table in self.tables))

    def learn(self, batch):
        """Do one step: pull the vectors of the batch's words and push the gradients. Return the loss."""
        contexts, targets = batch[:, :CONTEXT], batch[:, CONTEXT]
        loss, dense, sparse = self.model.gradients(self.vectors.pull(contexts), targets, self.weights())
        gradients = {
            self.vectors: (contexts, sparse),
            self.tables.hidden_w: dense.hidden_w,
            self.tables.hidden_b: dense.hidden_b,
            self.tables.output_w: dense.output_w,
            self.tables.output_b: dense.output_b,
        }
        self.ps.push(gradients, samples=len(batch), loss=loss)
        return loss

    def mean_loss(self, ngrams):
        """Return the mean loss over any number of n-grams, with the current values."""
        total = 0.0
        for batch in cut(ngrams, self.batch_size):
            vectors = self.vectors.pull(batch[:, :CONTEXT])
            total += len(batch) * self.model.loss(vectors, batch[:, CONTEXT], self.weights())
        return total / len(ngrams)


def train(ps, options):
    """Run all passes over this trainer's shards. `ps` shares the tables with the other trainers, if there are any."""
    shards, test_shards = (own_shards(options.data, kind, ps) for kind in ("train", "test"))
    words = read_words(options.data)
    ngrams, held_out = read_ngrams(shards, words), read_ngrams(test_shards, words)
    trainer = Trainer(ps, len(words), options.batch_size, options.learning_rate)

    def reader(pass_, rng):
        return cut(rng.permutation(ngrams), options.batch_size)

    def evaluate(pass_):
        loss, baseline = trainer.mean_loss(held_out), unigram_loss(ngrams, held_out, len(words))
        print(f"pass {pass_}: held-out perplexity {np.exp(loss):.1f}, unigram {np.exp(baseline):.1f}")
        ps.log(held_out_nll=loss, unigram_nll=baseline, weight=len(held_out))

    steps = ps.steps(
        reader,
        passes=options.num_passes,
        on_pass=evaluate if len(held_out) else None,
        prefetch=1,  # each push asks for the vectors of the next batch
        ids={trainer.vectors: lambda batch: batch[:, :CONTEXT]},
    )
    for batch in steps:
        loss = trainer.learn(batch)
        if ps.step % LOG_EVERY == 0:
            print(f"step {ps.step}: loss {loss:.3f}")


def own_shards(folder, kind, ps):
    """Return the shards that this trainer reads: those on its node that belong to its rank, or all if none do."""
    shards = sorted(Path(folder).glob(f"{kind}.txt-*"))
    if not shards:
        raise SystemExit(f"no {kind}.txt-* in {folder}: run python prepare_data.py --shards {ps.trainers}")
    return [shard for shard in shards if int(shard.name.split("-")[-1]) % ps.trainers == ps.rank] or shards


def read_words(folder):
    """Return the dictionary: word -> id."""
    lines = (Path(folder) / "words.txt").read_text(encoding="utf-8").splitlines()
    return {word: number for number, word in enumerate(lines)}


def read_ngrams(paths, words):
    """Return every word of every line with the CONTEXT words before it: int64 (n, CONTEXT + 1)."""
    ngrams = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            ids = [START] * CONTEXT + [words.get(word, UNKNOWN) for word in line.split()]
            ngrams += [ids[start : start + CONTEXT + 1] for start in range(len(ids) - CONTEXT)]
    return np.array(ngrams, np.int64).reshape(-1, CONTEXT + 1)


def unigram_loss(ngrams, held_out, words):
    """Return the mean loss of predicting words by their frequency in this trainer's shards, with add-one smoothing."""
    counts = np.bincount(ngrams[:, CONTEXT], minlength=words) + 1
    return -float(np.log(counts / counts.sum())[held_out[:, CONTEXT]].mean())


def cut(array, size):
    return (array[start : start + size] for start in range(0, len(array), size))


def read_options():
    parser = argparse.ArgumentParser(description="Train the language model.", allow_abbrev=False)
    parser.add_argument("--num_passes", type=int, default=4, help="passes over the data (default 4)")
    parser.add_argument("--batch_size", type=int, default=512, help="samples per trainer and step (default 512)")
    parser.add_argument("--learning_rate", type=float, default=0.05, help="of Adagrad (default 0.05)")
    parser.add_argument("--data", default=DATA, help="the directory with the shards (default: data next to this file)")
    options, ignored = parser.parse_known_args()
    if ignored:
        print("ignored:", *ignored)
    return options


if __name__ == "__main__":
    with connect() as session:
        train(session, read_options())
