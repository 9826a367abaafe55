"""A neural n-gram language model (Bengio et al., 2003): the four words before a word predict it.

    x = [e(w1) e(w2) e(w3) e(w4)]     h = tanh(x W + b)     p(word) = softmax(h V + c)

Plain numpy, float32. It knows nothing about clusters: parameters come in, gradients go out.
"""

from typing import NamedTuple

import numpy as np

CONTEXT = 4  # words that predict the next one
EMBEDDING = 32  # width of a word's vector e(w)
HIDDEN = 256  # width of h


class Weights(NamedTuple):
    """One item per dense parameter: its values, its gradient, or its table."""

    hidden_w: np.ndarray  # W: (CONTEXT * EMBEDDING, HIDDEN)
    hidden_b: np.ndarray  # b: (HIDDEN,)
    output_w: np.ndarray  # V: (HIDDEN, words)
    output_b: np.ndarray  # c: (words,)


class NgramModel:
    """The mathematics, for batches of up to `batch_size` samples over a dictionary of `words` entries.

    A batch of n samples is `vectors` (n, CONTEXT, EMBEDDING), the word vectors of the contexts, and `targets` (n,),
    the ids to predict. The large arrays are reused, so gradients are valid only until the next call.
    """

    def __init__(self, batch_size, words):
        self._hidden = np.empty((batch_size, HIDDEN), np.float32)
        self._output = np.empty((batch_size, words), np.float32)
        self._d_output_w = np.empty((HIDDEN, words), np.float32)

    def loss(self, vectors, targets, weights):
        """Return the mean of -log p(target)."""
        _, p = self._forward(vectors, weights)
        return mean_nll(p, targets)

    def gradients(self, vectors, targets, weights):
        """Return the loss and its gradients: (loss, Weights, the gradient of `vectors`)."""
        hidden, p = self._forward(vectors, weights)
        loss = mean_nll(p, targets)
        d_scores = p  # the gradient of the scores is p, minus 1 at the target
        d_scores[np.arange(len(targets)), targets] -= 1
        d_scores /= len(targets)
        d_output_w = np.matmul(hidden.T, d_scores, out=self._d_output_w)
        d_hidden = d_scores @ weights.output_w.T
        d_hidden *= 1 - hidden * hidden
        d_hidden_w = flat(vectors).T @ d_hidden
        d_vectors = (d_hidden @ weights.hidden_w.T).reshape(vectors.shape)
        return loss, Weights(d_hidden_w, d_hidden.sum(axis=0), d_output_w, d_scores.sum(axis=0)), d_vectors

    def _forward(self, vectors, weights):
        count = len(vectors)
        hidden = np.matmul(flat(vectors), weights.hidden_w, out=self._hidden[:count])
        hidden += weights.hidden_b
        np.tanh(hidden, out=hidden)
        p = np.matmul(hidden, weights.output_w, out=self._output[:count])
        p += weights.output_b
        p -= p.max(axis=1, keepdims=True)  # so that exp does not overflow
        np.exp(p, out=p)
        p /= p.sum(axis=1, keepdims=True)
        return hidden, p


def flat(vectors):
    """Concatenate the word vectors of each context: x in the formula."""
    return vectors.reshape(len(vectors), CONTEXT * EMBEDDING)


def mean_nll(p, targets):
    chosen = p[np.arange(len(targets)), targets]
    return -float(np.log(np.maximum(chosen, 1e-30)).mean())
