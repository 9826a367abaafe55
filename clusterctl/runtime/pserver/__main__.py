"""`python -m clusterctl.runtime.pserver`."""

from __future__ import annotations

import sys

from clusterctl.runtime.pserver.process import main

if __name__ == "__main__":
    sys.exit(main())
