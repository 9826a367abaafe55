"""The GPUs that a process of a run sees: those of a node are dealt to its trainers, by CUDA_VISIBLE_DEVICES.

A device is named as that variable names it: by its index in the order of `nvidia-smi`, or by its UUID.
"""

from __future__ import annotations

from clusterctl.common.engines import ENGINES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.common.run_spec import ProcessSpec, RunSpec, RunSummary

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
AS_NVIDIA_SMI = "PCI_BUS_ID"  # CUDA's own order begins with the fastest
MIG = "MIG-"
NO_DEVICE = ("-1", "NoDevFiles")


def inherited_devices(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the devices that CUDA_VISIBLE_DEVICES of the node's account or scheduler allows; None without it."""
    if VISIBLE not in environ:
        return None
    return listed(environ[VISIBLE])


def listed(text: str) -> tuple[str, ...]:
    """Return the devices in a value of CUDA_VISIBLE_DEVICES. CUDA ignores all that follow one that is none."""
    words = [word.strip() for word in text.split(",")]
    end = next((at for at, word in enumerate(words) if not word or word in NO_DEVICE), len(words))
    return tuple(words[:end])


def deal(devices: Sequence[str], share: int, shares: int) -> tuple[str, ...]:
    """Return one of `shares` even, contiguous shares of the devices; of too few devices, one that others have too.

    A process can use one MIG instance only, so none gets more.
    """
    if not devices:
        return ()
    if shares >= len(devices) or any(device.startswith(MIG) for device in devices):
        return (devices[share % len(devices)],)
    each, more = divmod(len(devices), shares)
    begin = share * each + min(share, more)
    return tuple(devices[begin : begin + each + (share < more)])


def trainer_devices(spec: RunSpec | RunSummary, index: int, trainers: int) -> tuple[str, ...]:
    """Return the devices of one of the `trainers` of a node: those that ENV names, else its share.

    Engines with local ranks leave all devices to every trainer.
    """
    if VISIBLE in spec.env:
        return listed(spec.env[VISIBLE])
    gpus, devices = spec.gpus, (spec.gpus.devices if spec.gpus else None) or ()
    if gpus is None or ENGINES[spec.training.engine].local_ranks:
        return devices
    return deal(devices, (gpus.first or 0) + index, gpus.shares or trainers)


def gpu_variables(spec: RunSpec, process: ProcessSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what limits a process to its devices; nothing if none are known, or ENV names them.

    Only trainers get any.
    """
    gpus = spec.gpus
    if gpus is None or gpus.devices is None or VISIBLE in spec.env:
        return {}
    if ENGINES[spec.training.engine].local_ranks and gpus.limit is None:
        return {}
    trainers = sum(other.role == "trainer" for other in spec.processes)
    own = trainer_devices(spec, process.index, trainers) if process.role == "trainer" else ()
    ordered = {ORDER: AS_NVIDIA_SMI} if own and VISIBLE not in inherited else {}
    return {VISIBLE: ",".join(own), **ordered}
