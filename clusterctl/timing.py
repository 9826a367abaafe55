"""The control machine's clock, and the names that come from it."""

from __future__ import annotations

import datetime


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def new_job_id() -> str:
    """`JOB20261121-081530`, in local time: people compare it with their watch."""
    return datetime.datetime.now().strftime("JOB%Y%m%d-%H%M%S")
