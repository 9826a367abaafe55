"""Torch models on the parameter servers: `load_model`, and `connect`, for `distribute`, `outer` and `loader`.

Shipped to the nodes. The only package that imports torch; it also imports numpy and `runtime`. Start reading at
`session.py`.
"""

from clusterctl.torch.embeddings import Embedding
from clusterctl.torch.models import load_model
from clusterctl.torch.session import Session, connect

__all__ = ["Embedding", "Session", "connect", "load_model"]
