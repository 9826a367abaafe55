"""A neural n-gram language model (Bengio et al. 2003): the four words before a word predict it.

    x = [e(w1) e(w2) e(w3) e(w4)],  h = tanh(x W + b),  p(word) = softmax(h V + c)

Plain numpy, float32, one batch at a time. It knows nothing of clusters: parameters come in, gradients go out.
"""

from typing import NamedTuple

import numpy as np

CONTEXT = 4  # words before the predicted one
EMBEDDING = 32  # width of a word's vector
HIDDEN = 256  # width of the hidden layer


class Weights(NamedTuple):
    """The dense parameters, or their gradients."""

    hidden_w: np.ndarray  # (CONTEXT * EMBEDDING, HIDDEN)
    hidden_b: np.ndarray  # (HIDDEN,)
    output_w: np.ndarray  # (HIDDEN, words)
    output_b: np.ndarray  # (words,)


class NgramModel:
    """The mathematics for up to `batch_size` samples over a dictionary of `words`.

    The large buffers are made once and used again by every call, so gradients hold only until the next call.
    """

    def __init__(self, batch_size, words):
        self._hidden = np.empty((batch_size, HIDDEN), np.float32)
        self._scores = np.empty((batch_size, words), np.float32)
        self._output_w = np.empty((HIDDEN, words), np.float32)

    def loss(self, rows, targets, weights):
        """The mean negative log-likelihood of `targets` (n,), whose contexts have the word vectors `rows` (n * CONTEXT, EMBEDDING)."""
        return self._forward(rows, targets, weights)[0]

    def gradients(self, rows, targets, weights):
        """Returns (loss, gradients of `weights`, gradients of `rows`), of the mean loss over the batch."""
        loss, inputs, hidden, scores = self._forward(rows, targets, weights)
        count = len(targets)
        scores[np.arange(count), targets] -= 1  # softmax and logarithm together: p - 1 at the target, p elsewhere
        scores /= count
        output_w = np.matmul(hidden.T, scores, out=self._output_w)
        output_b = scores.sum(axis=0)
        d_hidden = scores @ weights.output_w.T
        d_hidden *= 1 - hidden * hidden
        d_rows = (d_hidden @ weights.hidden_w.T).reshape(rows.shape)
        return loss, Weights(inputs.T @ d_hidden, d_hidden.sum(axis=0), output_w, output_b), d_rows

    def _forward(self, rows, targets, weights):
        count = len(targets)
        inputs = rows.reshape(count, CONTEXT * EMBEDDING)
        hidden = np.matmul(inputs, weights.hidden_w, out=self._hidden[:count])
        hidden += weights.hidden_b
        np.tanh(hidden, out=hidden)
        scores = np.matmul(hidden, weights.output_w, out=self._scores[:count])
        scores += weights.output_b
        scores -= scores.max(axis=1, keepdims=True)  # so that exp cannot overflow
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        chosen = scores[np.arange(count), targets]
        return -float(np.log(np.maximum(chosen, 1e-30)).mean()), inputs, hidden, scores
