"""A small causal transformer over bytes, with no knowledge of clusters."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

BYTES = 256  # the vocabulary
HEAD = 32  # numbers of an attention head


class Transformer(nn.Module):
    """Predicts each next byte of a text from at most `context` bytes before it."""

    def __init__(self, context=128, width=128, depth=5, dropout=0.1):
        super().__init__()
        self.context = context
        self.bytes = nn.Embedding(BYTES, width)
        self.positions = nn.Embedding(context, width)
        block = {"dim_feedforward": 4 * width, "dropout": dropout, "activation": "gelu"}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // HEAD, batch_first=True, norm_first=True, **block)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, BYTES)

    def forward(self, text):
        """Return the logits of the byte after each byte of `text`: int64 (n, length) -> float32 (n, length, 256)."""
        length = text.shape[1]
        x = self.bytes(text) + self.positions(torch.arange(length, device=text.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.output(self.norm(x))

    def loss(self, windows):
        """Return the mean loss, in nats per byte, of predicting each byte of int64 (n, length) from those before it."""
        logits = self(windows[:, :-1])
        return cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def like(tensors):
    """Return a new model of the shape of the saved `tensors`, a dict by name."""
    context, width = tensors["positions.weight"].shape
    depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    return Transformer(context, width, depth)


@torch.no_grad()
def continued(model, text, count):
    """Return `text` (bytes) with `count` more bytes, drawn one after another from the model."""
    model.eval()
    window = torch.tensor([list(text)])
    for _ in range(count):
        logits = model(window[:, -model.context :])[0, -1]
        drawn = torch.multinomial(logits.softmax(0), 1)
        window = torch.cat([window, drawn[None]], dim=1)
    return bytes(window[0].tolist())
