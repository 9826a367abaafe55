"""What `nvidia-smi` prints is understood, and does no harm if it fails, hangs or prints something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.agent.gpus import nvidia_smi
from clusterctl.agent.gpus.nvidia_smi import Gpu, GpuReading, NvidiaSmiError, User, list_devices, read
from support import nvidia_smi as recorded
from support.nvidia_smi import Smi, uuid
from support.processes import processes_with_environment, wait_until

MIB = 1 << 20


def reading(smi: Smi, directory: Path) -> GpuReading:
    smi.install(directory)
    return read(str(directory / "nvidia-smi"))


@pytest.mark.parametrize(
    ("smi", "gpu", "devices"),
    [
        (recorded.A100, Gpu(0, uuid(0), "NVIDIA A100-SXM4-40GB", 40960 * MIB, 3 * MIB, 0), ("0", "1", "2", "3")),
        (recorded.H100, Gpu(0, uuid(0), "NVIDIA H100 80GB HBM3", 81559 * MIB, 19818 * MIB, 100), ("0",)),
        (recorded.V100, Gpu(0, uuid(0), "Tesla V100-SXM2-16GB", 16160 * MIB, 0, 0), ("0", "1")),
        (recorded.INFOROM, Gpu(0, uuid(0), "Tesla V100-SXM2-16GB", 16160 * MIB, 0, 0), ("0", "1")),
        (recorded.GEFORCE, Gpu(0, uuid(0), "NVIDIA GeForce RTX 2080 SUPER", 8192 * MIB, 819 * MIB, 8), ("0",)),
        (recorded.UNSUPPORTED, Gpu(0, uuid(0), "GeForce GT 610", None, None, None), ("0",)),
        (recorded.GB10, Gpu(0, uuid(0), "NVIDIA GB10", None, None, 0), ("0",)),
        (
            recorded.H100_MIG,
            Gpu(0, uuid(0), "NVIDIA H100 80GB HBM3", 81559 * MIB, 11125 * MIB, None),
            tuple(f"{recorded.MIG}{at:02}" for at in range(3)),
        ),
        (
            recorded.A100_OLD_MIG,
            Gpu(0, uuid(0), "A100-SXM4-40GB", 40537 * MIB, 14293 * MIB, None),
            (f"MIG-{uuid(0)}/1/0", f"MIG-{uuid(0)}/2/0"),
        ),
        (recorded.NONE, None, ()),
    ],
)
def test_the_output_of_many_cards_and_drivers_is_read(
    smi: Smi, gpu: Gpu | None, devices: tuple[str, ...], tmp_path: Path
) -> None:
    found = reading(smi, tmp_path)
    assert next(iter(found.gpus), None) == gpu
    assert found.devices == list_devices(str(tmp_path / "nvidia-smi"))
    assert found.devices.names == devices
    assert [one.uuid for one in found.gpus] == list(found.devices.uuids)


def test_processes_are_listed_with_their_gpu_and_memory(tmp_path: Path) -> None:
    assert reading(recorded.H100, tmp_path).users == [
        User(uuid(0), 11327, 2566 * MIB),
        User(uuid(0), 11345, 15690 * MIB),
    ]


def test_processes_that_the_account_may_not_see_are_left_out(tmp_path: Path) -> None:
    assert reading(recorded.HIDDEN_USERS, tmp_path).users == [User(uuid(0), 21198, None)]


@pytest.mark.parametrize(
    ("smi", "words"),
    [
        (recorded.NO_DRIVER, "exited with code 9: NVIDIA-SMI has failed because it couldn't communicate with the NVI"),
        (recorded.LOST, "exited with code 15: Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost"),
        (recorded.failing(1, "\x1b[2J\x07" + "x" * 9000), r"code 1: \?\[2J\?x{150,160}\.\.\.$"),
    ],
)
def test_a_failure_is_reported_in_its_own_words(smi: Smi, words: str, tmp_path: Path) -> None:
    with pytest.raises(NvidiaSmiError, match=words):
        reading(smi, tmp_path)


def test_a_program_that_cannot_run_is_reported(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/no/such/shell\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    with pytest.raises(NvidiaSmiError, match=r"cannot run .*/nvidia-smi: No such file or directory"):
        read(str(tmp_path / "nvidia-smi"))


def test_one_that_hangs_is_killed_with_its_children_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_smi, "LIMIT_S", 0.2)
    monkeypatch.setenv("MARK_OF_THIS_TEST", str(tmp_path))
    with pytest.raises(NvidiaSmiError, match="did not answer within 0 s"):
        reading(replace(recorded.A100, hangs=True), tmp_path)
    assert wait_until(lambda: not processes_with_environment("MARK_OF_THIS_TEST", str(tmp_path)))


@pytest.mark.parametrize(
    "row",
    [
        "",
        f"-1, {uuid(0)}, 40960, 3, 0, NVIDIA A100",
        "0, $(reboot), 40960, 3, 0, NVIDIA A100",
    ],
)
def test_rows_that_are_no_gpus_are_left_out(row: str, tmp_path: Path) -> None:
    assert reading(replace(recorded.A100, gpus=f"{row}\n"), tmp_path).gpus == []


def test_hostile_text_is_cut_and_made_printable(tmp_path: Path) -> None:
    rows = f"0, {uuid(0)}, {10**40}, -3, 0x10, \x1b]0;title\x07evil, name\u202e{'x' * 5000}\n"
    (gpu,) = reading(replace(recorded.A100, gpus=rows, users="GPU-1, 0, 1\n\x1b, 2, 3\n"), tmp_path).gpus
    assert (gpu.total, gpu.used, gpu.utilization) == (None, None, None)
    assert gpu.name.startswith("?]0;title?evil, name?xxx")
    assert len(gpu.name) == nvidia_smi.MOST_CHARS
    assert gpu.name.isprintable()


def test_endless_output_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec yes\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    with pytest.raises(NvidiaSmiError, match="exited with code -13"):
        read(str(tmp_path / "nvidia-smi"))


def test_many_gpus_and_processes_are_limited(tmp_path: Path) -> None:
    many = recorded.alike(100, "NVIDIA A100-SXM4-40GB", 40960, 3, 0)
    found = reading(many.with_users(*((0, pid, 1) for pid in range(1, 1000))), tmp_path)
    assert (len(found.gpus), len(found.devices.names), len(found.users)) == (64, 64, 256)
