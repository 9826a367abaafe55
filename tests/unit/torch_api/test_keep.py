"""`ps.keep`: what may be kept, how it is written, and what a scheduler that is not kept causes."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

import clusterctl.torch as ct
from clusterctl.runtime.checkpoint.safetensors import TensorFile, write_tensors
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.state.files import SavedState, StateContent
from clusterctl.torch.packing import ValuePacker, unpack
from clusterctl.torch.state import Value, gradients_of
from unit.torch_api.programs import DATASET, SIZE, cluster_of, fit, mlp

pytestmark = pytest.mark.engines

ABOUT = {"format": "clusterctl-state/1", "cursor": "null", "rank": "0", "trainers": "1", "epoch": "0"}
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2),
]


@pytest.fixture
def ps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    with ct.connect() as session:
        yield session


class Holder:
    """Anything with state."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return self.value

    def load_state_dict(self, value: Any) -> None:
        self.value = value


def through_a_file(path: Path, value: Any) -> Any:
    packer = ValuePacker("thing")
    state = StateContent({"thing": packer.pack(value)}, packer.entries)
    place = {"step": "3", "pass": "1", "batch": "2"}
    write_tensors(path, state.entries, {**ABOUT, **place, "tree": json.dumps(state.tree)})
    saved = SavedState(TensorFile(path))
    return unpack(saved.tree["thing"], saved)


def test_gradients_come_back_also_sparse_ones(tmp_path: Path) -> None:
    def make() -> Any:
        model = nn.ModuleList([nn.Embedding(9, 2, sparse=True), nn.Linear(2, 1), nn.Linear(2, 1)])
        return model, optim.SGD(model.parameters(), lr=0.1)

    model, optimizer = make()
    model[1](model[0](torch.tensor([3, 1, 3]))).sum().backward()
    taken = gradients_of(optimizer, [3, 4]).take()
    place = {"step": "3", "pass": "1", "batch": "2"}
    assert taken is not None
    write_tensors(tmp_path / "s.safetensors", taken.entries, {**ABOUT, **place, "tree": json.dumps(taken.tree)})
    (other, successor), counts = make(), []
    gradients_of(successor, counts).load(SavedState(TensorFile(tmp_path / "s.safetensors")))
    assert counts == [3, 4]
    for one, again in zip(model.parameters(), other.parameters(), strict=True):
        if one.grad is None:
            assert again.grad is None
        else:
            assert (one.grad.layout, one.grad.shape) == (again.grad.layout, again.grad.shape)
            assert torch.equal(one.grad.to_dense(), again.grad.to_dense())


def test_a_saved_state_that_does_not_fit_is_an_error_in_words(tmp_path: Path) -> None:
    packer = ValuePacker("_inner")
    state = StateContent({"_inner": packer.pack({"a": 1})}, packer.entries)
    place = {"step": "3", "pass": "1", "batch": "2"}
    write_tensors(tmp_path / "s.safetensors", state.entries, {**ABOUT, **place, "tree": json.dumps(state.tree)})
    value = Value("_inner", dict, lambda given: given["b"])
    with pytest.raises(UseError, match="the state of 'inner' that was saved does not fit: 'b'; start the run anew"):
        value.load(SavedState(TensorFile(tmp_path / "s.safetensors")))


def test_values_come_back_with_their_types(tmp_path: Path) -> None:
    value = {
        "numbers": [1, -(2**70), 0.1, True, None, "é", float("inf")],
        "tuple": (1, (2.5, [3])),
        "by_number": {0: {"exp": torch.arange(3.0)}, -1: (), None: 1, (1, "a"): 2},
        "ordered": OrderedDict([("b", 1), ("a", torch.tensor(2))]),
        "counter": Counter({3: 2, 5: 1}),
        "$odd": {"$tensor": "not one", "a.b": torch.ones(1), "a": {"b": torch.zeros(1)}},
        "array": np.arange(4, dtype=np.int16).reshape(2, 2),
        "scalar": np.float32(0.1),
        "bits": np.bool_(1),
        "size": torch.Size([2, 3]),
        "empty": torch.empty(0, 3),
    }
    back = through_a_file(tmp_path / "state.safetensors", value)
    assert back.keys() == value.keys()
    assert back["numbers"] == value["numbers"]
    assert [type(one) for one in back["numbers"]] == [type(one) for one in value["numbers"]]
    for name in ("tuple", "counter", "size", "scalar", "bits"):
        assert back[name] == value[name]
    assert [type(back[name]) for name in ("counter", "ordered", "scalar")] == [Counter, OrderedDict, np.float32]
    assert [*back["by_number"]] == [0, -1, None, (1, "a")]
    assert torch.equal(back["by_number"][0]["exp"], torch.arange(3.0))
    assert [*back["ordered"]] == ["b", "a"]
    assert back["$odd"]["$tensor"] == "not one"
    assert (back["$odd"]["a.b"].item(), back["$odd"]["a"]["b"].item()) == (1, 0)
    np.testing.assert_array_equal(back["array"], value["array"])
    assert back["empty"].shape == (0, 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_tensors_of_every_type_come_back_bit_for_bit(tmp_path: Path, dtype: Any, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    bits = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
    tensor = bits.view(dtype).reshape(shape)
    back = through_a_file(tmp_path / "state.safetensors", tensor)
    assert (back.dtype, back.shape) == (dtype, tensor.shape)
    assert torch.equal(back.reshape(-1).view(torch.uint8), bits)


def test_the_safetensors_library_reads_a_state(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    value = {"half": torch.ones(2, dtype=torch.bfloat16), "transposed": torch.arange(6.0).reshape(2, 3).T}
    through_a_file(tmp_path / "state.safetensors", value)
    back = safetensors.load_file(tmp_path / "state.safetensors")
    assert sorted(back) == ["thing/half", "thing/transposed"]
    assert all(torch.equal(back[f"thing/{name}"], tensor) for name, tensor in value.items())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("scheduler.lr_lambdas[0]", {"lr_lambdas": [lambda step: step]}),
        ("scheduler.a[1].b", {"a": [0, {"b": {1, 2}}]}),
        ("scheduler[3]", {3: object()}),
        ("scheduler.sparse", {"sparse": torch.eye(2).to_sparse()}),
        ("scheduler.objects", {"objects": np.array([None])}),
        ("scheduler.text", {"text": b"bytes"}),
        ("scheduler.z", {"z": 1j}),
    ],
)
def test_what_cannot_be_kept_is_named_by_its_path(ps: Any, path: str, value: Any) -> None:
    with pytest.raises(UseError) as caught:
        ps.keep("scheduler", Holder(value))
    assert f": {path} is a" in str(caught.value)


@pytest.mark.parametrize("name", ["", "_buffers", "a/b", 3])
def test_names_that_are_not_accepted(ps: Any, name: Any) -> None:
    with pytest.raises(UseError, match=r"use a name without / that does not begin with _"):
        ps.keep(name, Holder({}))


def test_wrong_use_of_keep(ps: Any) -> None:
    with pytest.raises(UseError, match="object has no state_dict and load_state_dict"):
        ps.keep("scheduler", object())
    ps.keep("scheduler", Holder({}))
    with pytest.raises(UseError, match=r"a second ps\.keep\('scheduler'"):
        ps.keep("scheduler", Holder({}))

    def on_pass(pass_: int) -> None:
        with pytest.raises(UseError, match="in a loop; call it before the loop"):
            ps.keep("other", Holder({}))

    for _ in ps.loader(DATASET, SIZE, 1, on_pass=on_pass):
        with pytest.raises(UseError, match="in a loop; call it before the loop"):
            ps.keep("other", Holder({}))
    ps.keep("other", Holder({}))


def test_without_a_cluster_nothing_is_written(ps: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 1), nn.BatchNorm1d(1))
    ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
    ps.keep("scheduler", scheduler := optim.lr_scheduler.StepLR(optimizer, 4))
    fit(model, optimizer, ps.loader(DATASET, SIZE, 1), scheduler)
    assert not [*tmp_path.rglob("*trainer*")]


def test_a_file_of_state_names_its_things(tmp_path: Path) -> None:
    def program(ps: Any) -> None:
        model = nn.Sequential(nn.Linear(8, 1), nn.BatchNorm1d(1))
        ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
        ps.keep("scheduler", scheduler := optim.lr_scheduler.StepLR(optimizer, 4))
        ps.keep("noise", torch.Generator())
        fit(model, optimizer, ps.loader(DATASET, SIZE, 1), scheduler)

    with cluster_of(tmp_path, 1, 1) as cluster:
        cluster.train(program)
    newest = TensorFile(max(tmp_path.rglob("trainer-*")))
    assert newest.names == [
        *("_buffers/1.running_mean", "_buffers/1.running_var", "_buffers/1.num_batches_tracked"),
        "noise",
    ]
    tree = json.loads(newest.metadata["tree"])
    assert [*tree] == ["_buffers", "scheduler", "noise", "_rates"]
    assert (tree["scheduler"]["last_epoch"], tree["_rates"][0]["initial_lr"]) == (10, 0.1)


def with_scheduler(ps: Any, *, keeps: bool, make: Any) -> None:
    model = mlp()
    ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
    scheduler = make(optimizer)
    if keeps:
        ps.keep("scheduler", scheduler)
    fit(model, optimizer, ps.loader(DATASET, SIZE, 1), scheduler)


def chained(optimizer: Any) -> Any:
    parts = [optim.lr_scheduler.LinearLR(optimizer, total_iters=3), optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])]
    return optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[3])


@pytest.mark.parametrize("make", [lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 2), chained])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_scheduler_that_is_not_kept_is_warned_of_once(
    ps: Any, capsys: pytest.CaptureFixture[str], keeps: bool, make: Any
) -> None:
    with_scheduler(ps, keeps=keeps, make=make)
    warnings = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert len(warnings) == (0 if keeps else 1)
    assert all("is not kept, and starts anew after a restart; call ps.keep before the loop" in one for one in warnings)


def test_a_rate_that_the_program_sets_is_not_warned_of(ps: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = mlp()
    ps.distribute(model, optimizer := optim.SGD(model.parameters(), lr=0.1))
    for x, _ in ps.loader(DATASET, SIZE, 1):
        optimizer.param_groups[0]["lr"] *= 0.9
        model(x).sum().backward()
        optimizer.step()
    assert "warning" not in capsys.readouterr().out
