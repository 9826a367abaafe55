"""Lost trainers without which the others continue, and trainers that died when they were done."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.runtime import SGD
from clusterctl.runtime.pserver.process import PServer
from clusterctl.runtime.supervisor_socket import SupervisorSocket
from clusterctl.runtime.trainer.session import Session
from clusterctl.runtime.trainer.zmq_link import RemoteLink
from unit.runtime.cluster import ThreadCluster, environment, make_job, thread_cluster

BATCHES = 12


def give_up(cluster: ThreadCluster, *ranks: int) -> None:
    for pserver in cluster.pservers:
        pserver.handle_command({"cmd": "lost", "ranks": list(ranks)})


def reader(pass_: int, rng: np.random.Generator) -> Any:
    return range(100 * pass_, 100 * pass_ + BATCHES)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_two_passes_later_the_others_take_over_every_batch_of_a_lost_trainer(tmp_path: Path, mode: str) -> None:
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    gone = threading.Event()
    with thread_cluster(tmp_path, 2, 3, mode=mode) as cluster:

        def program(ps: Any) -> None:
            w = ps.dense("w", shape=8, rule=SGD(1.0))
            for batch in ps.steps(reader, passes=4, shard=True):
                if ps.rank == 2 and batch >= 2 + 3:
                    give_up(cluster, 2)
                    gone.set()
                    raise KeyboardInterrupt  # it dies without saying goodbye
                if ps.rank < 2 and batch >= 6:
                    assert gone.wait(180)
                seen[ps.rank].append(batch)
                ps.push({w: np.ones(8, np.float32)}, samples=4)

        def run(rank: int) -> None:
            try:
                with cluster.session(rank) as ps:
                    program(ps)
            except KeyboardInterrupt:
                pass

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
        assert not any(thread.is_alive() for thread in threads)
    first = [batch for batch in seen[0] + seen[1] + seen[2] if batch < 100]
    assert sorted(first) == [b for b in range(BATCHES) if b % 3 != 2 or b == 2], "the rest of its share is skipped"
    for pass_ in (2, 3):
        shares = [[batch for batch in seen[rank] if batch // 100 == pass_] for rank in (0, 1)]
        assert sorted(shares[0] + shares[1]) == list(reader(pass_, np.random.default_rng()))
        assert len(shares[0]) == len(shares[1])
    assert [batch for batch in seen[2] if batch >= 100] == []


def test_a_trainer_that_died_after_its_goodbye_has_nothing_left_to_do(tmp_path: Path) -> None:
    with thread_cluster(tmp_path, 2, 1) as cluster:
        for attempt in (1, 2):
            with cluster.session(0, attempt=attempt) as ps:
                w = ps.dense("w", shape=8, rule=SGD(1.0))
                taken = 0
                for _ in ps.steps(reader, passes=1):
                    ps.push({w: np.ones(8, np.float32)}, samples=4)
                    taken += 1
                assert taken == (BATCHES if attempt == 1 else 0)
                assert w.value[0] == -BATCHES


def test_a_pserver_fails_if_a_save_fails_for_which_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would look like a success: the trainer has left, and its program has ended."""

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("clusterctl.runtime.pserver.process.write_save", fail)
    root = make_job(tmp_path, 1, 1)
    pserver = PServer(environment(root, "pserver", 0), lambda *_: None)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(pserver.run)
        env = environment(root, "trainer", 0, (f"127.0.0.1:{pserver.ports[0]}",))
        ps = Session(env, RemoteLink(env), SupervisorSocket(None), None)
        w = ps.dense("w", shape=8, rule=SGD(1.0))
        for _ in ps.steps(reader, passes=1):
            ps.push({w: np.ones(8, np.float32)}, samples=4)
            break
        ps._client.close()
        pserver.handle_command({"cmd": "left", "ranks": [0]})
        pserver.handle_command({"cmd": "finish"})
        with pytest.raises(OSError, match="no space"):
            running.result(180)
    pserver.close()
