"""Tests of clusterctl.torch, run by `make engines`. A folder `tests/torch` would hide torch."""

import pytest

pytest.importorskip("torch", reason="torch is not installed here")
