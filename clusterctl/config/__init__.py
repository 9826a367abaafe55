"""Load conf.py, a Python file, as validated, frozen `Settings`.

May import `common` and `errors`. Start reading at `declarations.py`, which declares every setting.
"""

from clusterctl.config.hosts import Host
from clusterctl.config.loader import Conf, from_values, load, read
from clusterctl.config.settings import Settings
from clusterctl.config.values import Best

__all__ = ["Best", "Conf", "Host", "Settings", "from_values", "load", "read"]
