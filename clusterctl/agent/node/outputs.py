"""The outputs of a run: in the job directory, or, once a later run has begun, beside the run's events."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from clusterctl.agent.node.checkpoint_files import PIECES, piece_header
from clusterctl.agent.node.runs import read_summary
from clusterctl.common.manifest import NAME, is_scheduled_tag, is_tag, read_manifest
from clusterctl.common.paths import JobPaths, RunPaths
from clusterctl.common.run_spec import ResumePoint


class ModelDirectory(NamedTuple):
    """A directory with pieces of a model, of which only the lead's node knows that it is `complete`."""

    directory: Path
    run: str
    step: int
    complete: bool

    @property
    def is_scheduled(self) -> bool:
        """False for what the program saved under a name of its own."""
        return is_scheduled_tag(self.directory.name)


def output_places(job: JobPaths, run: RunPaths | None) -> list[Path]:
    """Return the directories with outputs of a run, its own first.

    A run that was resumed has left its outputs to the run that resumed it, except models that were to be made again.
    """
    if run is None:
        return [job.output]
    names = sorted((path.name for path in job.runs.iterdir() if path.name.isdigit()), key=int)
    later = [job.run(name) for name in names if int(name) > int(run.run)]
    places = [run.dir / "output"] if later else [job.output]
    for number, following in enumerate(later):
        if _continued(following) is None:
            break
        is_newest = number == len(later) - 1
        places.append(job.output if is_newest else following.dir / "output")
    return places


def _continued(run: RunPaths) -> ResumePoint | None:
    """Return where a run resumed an earlier one of the same job, whose outputs it took over; None if it did not."""
    summary = read_summary(run)
    point = summary.saving.resume if summary is not None else None
    return point if point is not None and point.job is None and int(point.run) < int(run.run) else None


def models_in(place: Path) -> Iterator[ModelDirectory]:
    """Yield the models in a directory of outputs."""
    for directory in sorted(place.iterdir()) if place.is_dir() else ():
        if not is_tag(directory.name) or directory.is_symlink() or not directory.is_dir():
            continue
        piece = next(iter(sorted(directory.glob(PIECES))), None)
        about = None
        with contextlib.suppress(OSError, ValueError):
            about = read_manifest(directory)
        known = about or (piece_header(piece) if piece is not None else {})
        if about is not None or piece is not None:
            step = known.get("step")
            whole = int(step) if isinstance(step, (int, str)) and str(step).isdigit() else -1
            yield ModelDirectory(directory, str(known.get("run", "")), whole, about is not None)


def copied_models(run: RunPaths) -> Iterator[ModelDirectory]:
    """Yield the complete models of a run, and of those that it resumed, whose manifest this node was given."""
    most, last = None, run
    while True:
        for directory in sorted(last.copies.iterdir()) if last.copies.is_dir() else ():
            with contextlib.suppress(OSError, ValueError):
                about = read_manifest(directory)
                if about is None or about.get("checkpoint") or (most is not None and about["step"] > most):
                    continue
                yield ModelDirectory(directory, str(about.get("run", "")), int(about["step"]), complete=True)
        point = _continued(last)
        if point is None:
            return
        most, last = point.step, run.job.run(point.run)


def complete_models(job: JobPaths) -> dict[str, int]:
    """Return the step of each complete model in output/ that KEEP_MODELS may remove, by tag."""
    return {one.directory.name: one.step for one in models_in(job.output) if one.complete and one.is_scheduled}


def is_part_of_model(name: str) -> bool:
    """Return True for the files of a model's directory that we wrote; the program may have added others."""
    return name == NAME or Path(name).match(PIECES)
