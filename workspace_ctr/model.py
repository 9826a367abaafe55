"""Predict yes or no from categories: wide and deep (Cheng et al., 2016), with an embedding for each field.

    v(f) = [w(f) e(f)]                       a sample's vector for field f: a weight and an embedding
    x = [e(1) ... e(F)]                      h = max(0, x W + b)
    p(yes) = sigmoid(w(1) + ... + w(F) + h u + c)

The sum over w is the wide part, a logistic regression on the categories. h is the deep part, which learns how fields
interact. Plain numpy, float32. It knows nothing about clusters: parameters come in, gradients go out.
"""

from typing import NamedTuple

import numpy as np

EMBEDDING = 8  # width of e
WIDTH = 1 + EMBEDDING  # of a category's whole vector v
HIDDEN = 32  # width of h


class Weights(NamedTuple):
    """One item per dense parameter: its values, its gradient, or its table."""

    hidden_w: np.ndarray  # W: (fields * EMBEDDING, HIDDEN)
    hidden_b: np.ndarray  # b: (HIDDEN,)
    output_w: np.ndarray  # u: (HIDDEN,)
    output_b: np.ndarray  # c: (1,)


def shapes(fields):
    """Return the shape of each dense parameter, for samples with this number of fields."""
    return Weights((fields * EMBEDDING, HIDDEN), (HIDDEN,), (HIDDEN,), (1,))


def scores(vectors, weights):
    """Return the logit of p(yes) of each sample, (n,). `vectors` is (n, fields, WIDTH)."""
    return _forward(vectors, weights)[2]


def gradients(vectors, labels, weights):
    """Return the mean log-loss and its gradients: (loss, Weights, the gradient of `vectors`). `labels` (n,): 0 or 1."""
    x, hidden, z = _forward(vectors, weights)
    d_z = (sigmoid(z) - labels) / np.float32(len(labels))
    d_hidden = np.outer(d_z, weights.output_w)
    d_hidden *= hidden > 0
    d_vectors = np.empty_like(vectors)
    d_vectors[:, :, 0] = d_z[:, None]
    d_vectors[:, :, 1:] = (d_hidden @ weights.hidden_w.T).reshape(len(vectors), -1, EMBEDDING)
    dense = Weights(x.T @ d_hidden, d_hidden.sum(axis=0), hidden.T @ d_z, d_z.sum(keepdims=True))
    return log_loss(z, labels), dense, d_vectors


def _forward(vectors, weights):
    """Return x, h and the logits of the formula."""
    x = vectors[:, :, 1:].reshape(len(vectors), -1)
    hidden = np.maximum(x @ weights.hidden_w + weights.hidden_b, 0)
    return x, hidden, vectors[:, :, 0].sum(axis=1) + hidden @ weights.output_w + weights.output_b


def sigmoid(z):
    return 1 / (1 + np.exp(-np.clip(z, -80, 80)))  # keeps exp within the range of float32


def log_loss(z, labels):
    """Return the mean of -log p(label), where z are the logits of p(1)."""
    return float(np.mean(np.logaddexp(0, z) - labels * z))


def auc(z, labels):
    """Return the fraction of (yes, no) pairs in which the yes scores higher; a tie counts one half. nan without pairs.

    This is the Mann-Whitney statistic, exact, from the sum of the ranks of the yeses. Equal scores share their mean
    rank.
    """
    _, group, sizes = np.unique(z, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(sizes) - (sizes - 1) / 2
    yes = labels > 0
    n_yes, n_no = int(yes.sum()), int((~yes).sum())
    if not n_yes or not n_no:
        return float("nan")
    return float((mean_ranks[group][yes].sum() - n_yes * (n_yes + 1) / 2) / (n_yes * n_no))
