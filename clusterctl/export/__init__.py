"""Metrics out: a run's record as files for other programs, and the state of a run for Prometheus.

May import `cluster`, `common`, `documents`, `errors`, `escape`, `inventory` and `observe`. Start reading at `export.py`
and, for Prometheus, at `scraped.py`.
"""

from clusterctl.export.export import CSV, FORMATS, TENSORBOARD, TRACE, Export, export

__all__ = ["CSV", "FORMATS", "TENSORBOARD", "TRACE", "Export", "export"]
