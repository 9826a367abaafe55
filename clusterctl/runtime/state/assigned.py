"""Values that the program has assigned to dense tables, as state of a trainer until its next push."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.runtime.errors import UseError
from clusterctl.runtime.state.files import Loadable, StateContent, entry_of


class AssignedValues:
    """`assigned` are the tables by name that have such values, `tables` all that may."""

    name = "_assigned"

    def __init__(self, assigned: dict[str, Any], tables: Mapping[str, Any]) -> None:
        self._assigned = assigned
        self._tables = tables

    def take(self) -> StateContent | None:
        if not self._assigned:
            return None
        entries = [entry_of(f"{self.name}/{name}", "F32", table.value) for name, table in self._assigned.items()]
        return StateContent({self.name: [*self._assigned]}, entries)

    def load(self, saved: Loadable) -> None:
        for name in saved.tree[self.name]:
            table = self._tables.get(name)
            if table is None:
                raise UseError(
                    f"the trainer's state has a value that was assigned to table {name!r}, not declared yet",
                    remedy="declare the tables of ps.assign before the loop",
                )
            table.value[...] = saved.tensor(f"{self.name}/{name}")[1].reshape(table.value.shape)
            self._assigned[name] = table


class Marker:
    """Makes a program keep a state: it may assign values in its loop."""

    name = "_assigns"

    def take(self) -> StateContent:
        return StateContent({self.name: True}, [])

    def load(self, saved: Loadable) -> None:
        pass
