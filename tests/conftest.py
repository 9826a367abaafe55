"""The order of test files: slow ones start first, so that no worker is left alone with one at the end.

Hypothesis sets no time limits: machines that run tests may be busy. A background job of a shell ignores SIGINT, and so
would the programs that tests start and interrupt.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from support.places import TESTS

settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST_FIRST = (
    "contract/docs/test_examples.py",
    "contract/e2e",
    "real/examples",
    "contract/fake",
    "contract/security",
    "unit/dispatch",
    "contract/template",
    "unit/transport",
    "real/kubernetes/test_page.py",
    "real/kubernetes/test_faults.py",
)


@pytest.hookimpl(trylast=True)  # after fixtures with parameters have been grouped
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(TESTS).as_posix()
        found = (number for number, name in enumerate(LONGEST_FIRST) if path == name or path.startswith(f"{name}/"))
        return next(found, len(LONGEST_FIRST))

    items.sort(key=place)
