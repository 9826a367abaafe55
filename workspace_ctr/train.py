"""Train the model of model.py, alone or as one of the trainers of a clusterctl job.

    python train.py --num_passes 3

It reads data/categories.txt and this trainer's shards of data/train.npy-* and data/test.npy-*; prepare_data.py makes
them. After each pass it prints AUC and log-loss on its held-out flights, and the log-loss of a constant prediction, the
same for every flight. Unknown options are ignored.
"""

import argparse
from pathlib import Path

import numpy as np

from clusterctl.runtime import Adagrad, connect, uniform
from model import WIDTH, Weights, auc, gradients, log_loss, scores, shapes

DATA = Path(__file__).parent / "data"
LOG_EVERY = 50  # steps
L2 = 5e-4  # regularizes the deep part, which otherwise memorizes the training days


class Trainer:
    """The model's tables on the parameter servers, and the work on a batch.

    A batch is an array (n,) of prepare_data.py's RECORD: `open` ids, any int64; `closed` ids, which count from 0; and
    `late`, 1 for a late flight.
    """

    def __init__(self, ps, categories, fields, learning_rate):
        rule = Adagrad(learning_rate, l2=L2)
        self.ps = ps
        self.open = ps.embedding("open", dim=WIDTH, rule=rule, init=uniform(0.05))  # rows appear when first pushed
        self.closed = ps.embedding("closed", dim=WIDTH, rows=categories, rule=rule, init=uniform(0.05))
        shape = shapes(fields)
        self.tables = Weights(
            ps.dense("hidden.w", shape=shape.hidden_w, rule=rule, init=uniform(0.1)),
            ps.dense("hidden.b", shape=shape.hidden_b, rule=rule),
            ps.dense("output.w", shape=shape.output_w, rule=rule, init=uniform(0.1)),
            ps.dense("output.b", shape=shape.output_b, rule=rule),
        )

    def weights(self):
        return Weights(*(table.value for table in self.tables))

    def vectors(self, batch):
        """Return a vector for each field of each sample, open fields first: float32 (n, fields, WIDTH)."""
        return np.concatenate([self.open.pull(batch["open"]), self.closed.pull(batch["closed"])], axis=1)

    def learn(self, batch):
        """Do one step: pull the vectors of the batch's categories and push the gradients. Return the loss.

        The batch is divided among the trainer's threads (TRAINER_THREADS).
        """
        pushed, samples, loss = self.ps.parallel(self.gradients, (batch, self.vectors(batch)))
        self.ps.push(pushed, samples, loss)
        return loss

    def gradients(self, part):
        """Return the gradients by table, the number of samples and the loss of a part of a batch and of its vectors."""
        batch, vectors = part
        loss, dense, d_vectors = gradients(vectors, batch["late"], self.weights())
        d_open, d_closed = np.split(d_vectors, [batch["open"].shape[1]], axis=1)
        pushed = {self.open: (batch["open"], d_open), self.closed: (batch["closed"], d_closed)}
        pushed.update(zip(self.tables, dense))
        return pushed, len(batch), loss

    def scores(self, records, at_once=4096):
        """Return the logits of any number of records, with the current values."""
        return np.concatenate([scores(self.vectors(part), self.weights()) for part in cut(records, at_once)])


def train(ps, options):
    """Run all passes over this trainer's shards. `ps` shares the tables with the other trainers, if there are any."""
    records, held_out = (read_shards(own_shards(options.data, kind, ps)) for kind in ("train", "test"))
    categories = len((Path(options.data) / "categories.txt").read_text(encoding="utf-8").splitlines())
    fields = records["open"].shape[1] + records["closed"].shape[1]
    trainer = Trainer(ps, categories, fields, options.learning_rate)

    def reader(pass_, rng):
        return cut(rng.permutation(records), options.batch_size)

    def evaluate(pass_):
        late, z = held_out["late"], trainer.scores(held_out)
        metrics = {"auc": auc(z, late), "logloss": log_loss(z, late), "constant_logloss": constant_loss(records, late)}
        print(f"pass {pass_}: held-out " + ", ".join(f"{name} {number:.4f}" for name, number in metrics.items()))
        ps.log(**{name: number for name, number in metrics.items() if np.isfinite(number)}, weight=len(held_out))

    for batch in ps.steps(reader, passes=options.num_passes, on_pass=evaluate if len(held_out) else None):
        loss = trainer.learn(batch)
        if ps.step % LOG_EVERY == 0:
            print(f"step {ps.step}: loss {loss:.3f}")


def own_shards(folder, kind, ps):
    """Return the shards that this trainer reads: those on its node that belong to its rank, or all if none do."""
    shards = sorted(Path(folder).glob(f"{kind}.npy-*"))
    if not shards:
        raise SystemExit(f"no {kind}.npy-* in {folder}: run python prepare_data.py --shards {ps.trainers}")
    return [shard for shard in shards if int(shard.name.split("-")[-1]) % ps.trainers == ps.rank] or shards


def read_shards(paths):
    return np.concatenate([np.load(path) for path in paths])


def constant_loss(records, late):
    """Return the log-loss of predicting for every flight the frequency in this trainer's records. Its AUC is 0.5."""
    p = (records["late"].sum(dtype=np.float64) + 1) / (len(records) + 2)
    return log_loss(np.full(len(late), np.log(p / (1 - p))), late)


def cut(array, size):
    return (array[start : start + size] for start in range(0, len(array), size))


def read_options():
    parser = argparse.ArgumentParser(description="Train the click-through model.", allow_abbrev=False)
    parser.add_argument("--num_passes", type=int, default=3, help="passes over the data (default 3)")
    parser.add_argument("--batch_size", type=int, default=512, help="samples per trainer and step (default 512)")
    parser.add_argument("--learning_rate", type=float, default=0.02, help="of Adagrad (default 0.02)")
    parser.add_argument("--data", default=DATA, help="the directory with the shards (default: data next to this file)")
    options, ignored = parser.parse_known_args()
    if ignored:
        print("ignored:", *ignored)
    return options


if __name__ == "__main__":
    with connect() as session:
        train(session, read_options())
