"""The control machine's clock, and the job ids made from it."""

from __future__ import annotations

import datetime


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def new_job_id() -> str:
    """Return an id such as `JOB20261121-081530`, in UTC: ids sort by time wherever they are made."""
    return utc_now().strftime("JOB%Y%m%d-%H%M%S")
