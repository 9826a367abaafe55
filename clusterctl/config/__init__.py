"""Load conf.py, a Python file, as validated, frozen `Settings`.

May import `errors`. Start reading at `declarations.py`, which declares every setting.
"""

from clusterctl.config.hosts import Host
from clusterctl.config.loader import Conf, from_values, load, read
from clusterctl.config.settings import Settings
from clusterctl.config.values import Best, Every, Mode

__all__ = ["Best", "Conf", "Every", "Host", "Mode", "Settings", "from_values", "load", "read"]
