"""The settings of a run as conf.py spells them, from its spec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clusterctl.common.run_spec import RunSpec


def settings_of(spec: RunSpec) -> dict[str, str]:
    """Return the settings that the spec of a run has, as text, in the order of conf.py's reference.

    Settings that only the control machine uses are not among them, unless they were given with `--set`.
    """
    known = {name: _text(value) for name, value in _values(spec) if value is not None}
    return {**known, **(spec.settings or {})}


def _values(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    training, saving, failures = spec.training, spec.saving, spec.failures
    yield "ENGINE", training.engine
    yield "MODE", training.mode if training.engine == "clusterctl" else None
    yield "SEED", training.seed
    yield "PSERVERS", training.pservers
    yield "TRAINERS", training.trainers
    yield "TRAINER_THREADS", training.trainer_threads
    yield "WIRE", training.wire
    yield "KEY_CACHE", training.key_cache
    yield "PS_SECURITY", training.security
    yield "USE_GPU", spec.use_gpu
    yield "LD_LIBRARY_PATH", spec.ld_library_path
    yield "PORT", spec.ports.port
    yield "PORTS_NUM", spec.ports.ports_num
    yield "PORTS_NUM_FOR_SPARSE", spec.ports.ports_num_for_sparse
    yield "HEARTBEAT_S", spec.timing.heartbeat_s
    yield "NODE_GRACE_S", spec.timing.node_grace_s
    yield "GRACE_S", spec.timing.grace_s
    yield "RESTARTS", dict(failures.restarts) or None
    yield "ON_TRAINER_LOSS", failures.on_trainer_loss
    yield "ON_STALL", failures.on_stall
    yield "STALL_S", failures.stall_s
    yield "ON_NAN", failures.on_nan
    yield "TIME_LIMIT_S", failures.time_limit_s
    yield "SAVE_EVERY", saving.save_every if saving.checkpoints else None
    yield "SAVE_MODEL_EVERY", saving.save_model_every
    yield "KEEP", saving.keep
    yield "KEEP_MODELS", saving.keep_models
    yield "KEEP_BEST", f"{saving.keep_best.direction} {saving.keep_best.name}" if saving.keep_best else None
    yield "MODEL_ON_LEAD_MB", saving.model_on_lead_mb
    yield "MEMORY_LIMIT_MB", spec.limits.memory_limit_mb
    yield "OPEN_FILES", spec.limits.open_files


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return str(value)
