"""`clusterctl-rank` where it is not installed, and on a node's Python: `python -I -S .../ranks/__main__.py`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from clusterctl.ranks.main import main

    main()
