"""Wheels are fetched from URLs: verified, several at a time, and left missing if the network does not give them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.common.errors import AgentError, Gone
from clusterctl.common.pip import fetch_all
from clusterctl.common.wheels import Wheel, WheelStore, describe
from support.web import served
from support.wheels import make_wheel, tiny


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path / "index") as url:
        yield url


def store_and_urls(tmp_path: Path, index: str, *wheels: Wheel) -> tuple[WheelStore, dict[str, str]]:
    return WheelStore(tmp_path / "store"), {wheel.digest: f"{index}/{wheel.file}" for wheel in wheels}


def test_wheels_are_fetched_into_the_store(tmp_path: Path, index: str) -> None:
    wheels = [describe(make_wheel(tmp_path / "index", f"w{number}", "1", {})) for number in range(9)]
    store, urls = store_and_urls(tmp_path, index, *wheels)
    looked: list[str] = []
    fetch_all(wheels, urls, store, lambda package: bool(looked.append(package)))
    assert all(store.has(wheel) for wheel in wheels)
    assert set(looked) <= {wheel.name for wheel in wheels}


@pytest.mark.parametrize("length", ["same", "other"])
def test_a_file_that_is_not_the_locked_one_is_refused(length: str, tmp_path: Path, index: str) -> None:
    path = tiny(tmp_path / "index")
    wheel = describe(path)
    path.write_bytes(bytes(wheel.size if length == "same" else 7))
    store, urls = store_and_urls(tmp_path, index, wheel)
    with pytest.raises(
        AgentError, match=rf"tiny 1\.0: {wheel.file} from 127\.0\.0\.1 is not the locked file"
    ) as caught:
        fetch_all([wheel], urls, store)
    assert caught.value.kind == "refused"
    assert list(store.directory.glob("*")) == []


def test_what_the_network_does_not_give_stays_missing(tmp_path: Path, index: str) -> None:
    wheel = describe(tiny(tmp_path / "elsewhere"))
    store = WheelStore(tmp_path / "store")
    for url in (f"{index}/no.whl", "http://127.0.0.1:1/x", f"file://{tmp_path}/elsewhere/{wheel.file}", "x"):
        fetch_all([wheel], {wheel.digest: url}, store)
        assert not store.has(wheel)


def test_a_fetch_ends_when_nobody_waits_for_it(tmp_path: Path, index: str) -> None:
    wheel = describe(tiny(tmp_path / "index"))
    store, urls = store_and_urls(tmp_path, index, wheel)
    with pytest.raises(Gone):
        fetch_all([wheel], urls, store, lambda package: True)
