"""Load conf.py, a Python file, as validated, frozen `Settings`.

May import `errors`. Start reading at `declarations.py`, which declares every setting.
"""

from clusterctl.config.hosts import Host
from clusterctl.config.loader import from_values, load
from clusterctl.config.settings import Settings
from clusterctl.config.values import Best, Every, Mode

__all__ = ["Best", "Every", "Host", "Mode", "Settings", "from_values", "load"]
