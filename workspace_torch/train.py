"""Train the transformer of model.py, alone or as one of the trainers of a clusterctl job.

    python train.py --passes 4
    python train.py --outer 50

It reads data/train.txt and data/test.txt, which prepare_data.py makes. After each pass it prints the loss of held-out
text, next to that of guessing each byte by its frequency alone. Unknown options are ignored.
"""

import argparse
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import Dataset

import clusterctl.torch as ct
from model import BYTES, Transformer

DATA = Path(__file__).parent / "data"
LOG_EVERY = 50  # batches
WARM_UP = 50  # batches until the learning rate is the full one


class Windows(Dataset):
    """A text cut into windows of `context + 1` bytes, int64. The last byte of each is the first of the next."""

    def __init__(self, text, context):
        self.text, self.context = text, context

    def __len__(self):
        return (len(self.text) - 1) // self.context

    def __getitem__(self, number):
        start = number * self.context
        return self.text[start : start + self.context + 1].long()


def train(ps, options):
    """Run all passes. `ps` shares the model with the other trainers, if there are any."""
    text, held_out = (read_bytes(Path(options.data) / name) for name in ("train.txt", "test.txt"))
    torch.manual_seed(ps.seed)  # of the initial values; ps.loader seeds everything after them
    model = Transformer(options.context, options.width, options.depth, options.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    outer = None
    if options.outer:
        # Each trainer takes steps of its own; after every `outer` of them the trainers' models are merged.
        outer = ps.outer(model, optimizer, every=options.outer)
    else:  # all trainers take each step together
        model, optimizer = ps.distribute(model, optimizer)
    schedule = LinearLR(optimizer, start_factor=0.02, total_iters=WARM_UP)
    ps.keep("schedule", schedule)  # a trainer that is restarted or resumed continues with it

    def evaluate(pass_):
        own = Windows(held_out, options.context)
        loss, count = mean_loss(model, [own[number] for number in range(ps.rank, len(own), ps.trainers)])
        baseline = frequency_loss(text, held_out)
        print(f"pass {pass_}: held-out loss {loss:.3f}, of byte frequencies {baseline:.3f}")
        ps.log(held_out_loss=loss, frequency_loss=baseline, weight=count)

    windows = Windows(text, options.context)
    batches = ps.loader(windows, options.batch_size, options.passes, shuffle=True, on_pass=evaluate)
    for number, batch in enumerate(batches, 1):
        loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        if outer:
            optimizer.step()
            outer.step(loss=loss)
        else:
            optimizer.step(loss=loss)
        schedule.step()
        if number % LOG_EVERY == 0:
            print(f"batch {number}: loss {loss.item():.3f}")


@torch.no_grad()
def mean_loss(model, windows, at_once=32):
    """Return the mean loss of any number of windows, and their number."""
    model.eval()
    parts = [torch.stack(windows[start : start + at_once]) for start in range(0, len(windows), at_once)]
    total = sum(len(part) * model.loss(part).item() for part in parts)
    model.train()
    return total / len(windows), len(windows)


def frequency_loss(text, held_out):
    """Return the mean loss of predicting bytes by their frequency in the training text, with add-one smoothing."""
    counts = torch.bincount(text, minlength=BYTES) + 1
    return cross_entropy(counts.log().expand(len(held_out), BYTES), held_out.long()).item()


def read_bytes(path):
    """Return the bytes of a file: uint8 (n,)."""
    if not path.exists():
        raise SystemExit(f"no {path}: run python prepare_data.py")
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


def read_options():
    parser = argparse.ArgumentParser(description="Train the transformer.", allow_abbrev=False)
    parser.add_argument("--passes", type=int, default=4, help="passes over the text (default 4)")
    parser.add_argument("--batch_size", type=int, default=8, help="windows per trainer and batch (default 8)")
    parser.add_argument("--learning_rate", type=float, default=0.001, help="of AdamW (default 0.001)")
    parser.add_argument("--outer", type=int, default=0, help="merge models after so many batches (default: every step)")
    parser.add_argument("--context", type=int, default=128, help="bytes that the model sees (default 128)")
    parser.add_argument("--width", type=int, default=128, help="a multiple of 32 (default 128)")
    parser.add_argument("--depth", type=int, default=5, help="transformer blocks (default 5)")
    parser.add_argument("--dropout", type=float, default=0.1, help="(default 0.1)")
    parser.add_argument("--data", default=DATA, help="the directory with the text (default: data next to this file)")
    options, ignored = parser.parse_known_args()
    if ignored:
        print("ignored:", *ignored)
    return options


if __name__ == "__main__":
    with ct.connect() as session:
        train(session, read_options())
