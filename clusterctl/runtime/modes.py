"""The training mode and checkpoint interval of a job, as in spec.json, and the tags that saves may have."""

from __future__ import annotations

import re
from typing import NamedTuple

from clusterctl.common.manifest import is_tag
from clusterctl.runtime.errors import UseError

#: Pushes of one trainer that may be in flight. Except in async, its next values depend on the answer. half-async is
#: async but for this: Paddle's HalfAsyncCommunicator, whose barrier is between the threads of one trainer, not between
#: trainers.
WINDOWS = {"sync": 1, "async": 4, "half-async": 1, "ssp": 1, "geo": 1}

_MODE = re.compile(r"(sync|async|half-async)|(ssp|geo)\((\d{1,9})\)")


class Mode(NamedTuple):
    """A training mode. `name` is "sync", "async", "half-async", "ssp" or "geo"; `bound` is the s of ssp(s) or the k of
    geo(k)."""

    name: str = "sync"
    bound: int = 0

    def __str__(self) -> str:
        return f"{self.name}({self.bound})" if self.name in ("ssp", "geo") else self.name

    @staticmethod
    def parse(text: str) -> Mode:
        """Parse `sync`, `async`, `half-async`, `ssp(s)`, or `geo(k)` with k at least 1. Raises UseError for others."""
        match = _MODE.fullmatch(text)
        if match is None or (match[2] == "geo" and int(match[3]) < 1):
            raise UseError(
                f"mode {text!r} is unknown", remedy='use "sync", "async", "half-async", "ssp(4)" or "geo(25)"'
            )
        return Mode(match[1]) if match[1] else Mode(match[2], int(match[3]))


class Every(NamedTuple):
    """A save every `n` passes ("pass"), steps ("step") or seconds ("s"), or only at the end of the run ("end")."""

    unit: str
    n: float

    def is_pass(self, passes: int) -> bool:
        return self.unit == "pass" and passes > 0 and passes % self.n == 0

    def is_step(self, step: int) -> bool:
        return self.unit == "step" and step > 0 and step % self.n == 0


#: How often a model is saved, unless SAVE_MODEL_EVERY says otherwise.
EACH_PASS = Every("pass", 1)


def check_tag(tag: str) -> str:
    """Return a tag that is safe as a directory name. Raises UseError otherwise."""
    if not is_tag(tag):
        raise UseError(
            f"tag {tag!r} is invalid",
            remedy="use up to 100 letters, digits and ._- , not starting with a dot",
        )
    return tag
