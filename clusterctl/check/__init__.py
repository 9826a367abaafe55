"""Preflight: find problems that would make `start` fail, before it does.

May import `cluster`, `common`, `documents`, `errors` and `inventory`. Start reading at `preflight.py`.
"""

from clusterctl.check.findings import Finding
from clusterctl.check.preflight import Report, check

__all__ = ["Finding", "Report", "check"]
