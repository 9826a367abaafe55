"""Tests of clusterctl.torch; run by `make engines`."""

import pytest

pytest.importorskip("torch", reason="torch is not installed here")
