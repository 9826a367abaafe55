"""How trainers follow the training mode, when a model is saved by default, and the tags that saves may have."""

from __future__ import annotations

from clusterctl.common.manifest import is_tag
from clusterctl.common.modes import Mode, SaveInterval
from clusterctl.runtime.errors import UseError

#: Pushes of one trainer that may be in flight. Except in async, its next values depend on the answer. half-async is
#: async but for this: Paddle's HalfAsyncCommunicator, whose barrier is between the threads of one trainer, not between
#: trainers.
WINDOWS = {"sync": 1, "async": 4, "half-async": 1, "ssp": 1, "geo": 1}

#: How often a model is saved, unless SAVE_MODEL_EVERY says otherwise.
EACH_PASS = SaveInterval("pass", 1)


def parse_mode(text: str) -> Mode:
    """Return a mode of a run's spec or of a pserver. Raises UseError if it is unknown."""
    try:
        return Mode.parse(text)
    except ValueError:
        raise UseError(
            f"mode {text!r} is unknown", remedy='use "sync", "async", "half-async", "ssp(4)" or "geo(25)"'
        ) from None


def check_tag(tag: str) -> str:
    """Return a tag that is safe as a directory name. Raises UseError otherwise."""
    if not is_tag(tag):
        raise UseError(
            f"tag {tag!r} is invalid",
            remedy="use up to 100 letters, digits and ._- , not starting with a dot",
        )
    return tag
