"""The control machine's clock, and the names that come from it."""

from __future__ import annotations

import datetime


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def new_job_id() -> str:
    """`JOB20261121-081530`, in UTC: ids sort by time, wherever the machines are that make them."""
    return utc_now().strftime("JOB%Y%m%d-%H%M%S")
