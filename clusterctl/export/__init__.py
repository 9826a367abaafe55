"""Metrics out: a run's record as files for other programs, and the state of a run for Prometheus.

May import `cluster`, `common`, `documents`, `errors`, `escape`, `inventory` and `observe`. Start reading at `export.py`
and, for Prometheus, at `scraped.py`.
"""

from clusterctl.export.export import CSV, TENSORBOARD, TRACE, Export, check_format, export

__all__ = ["CSV", "TENSORBOARD", "TRACE", "Export", "check_format", "export"]
