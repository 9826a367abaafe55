"""The lead's handling of nodes that are lost for good: their processes move to other members."""

from __future__ import annotations

import re
from typing import Any

import pytest

from clusterctl.agent.lead.actions import Policy, SendOrder
from clusterctl.agent.lead.saving.checkpoints import CheckpointRetention, CompleteCheckpoint
from clusterctl.agent.lead.saving.copies import CopyPolicy
from clusterctl.common.run_spec import MemberPlace, PieceSource
from unit.agent.lead.test_state_machine_recovery import keep, orders
from unit.agent.plays import NODE_GRACE_S, Play, one_each

BOTH = ("pserver", "trainer")
APART = [("pserver", 0, 0), ("pserver", 1, 1), ("trainer", 0, 0), ("trainer", 1, 1), ("trainer", 2, 2)]
ON_THEIR_OWN = [MemberPlace(node=node, roles=BOTH, shards=(node,)) for node in range(3)]
NEXT = {0: [2], 1: [0], 2: [1]}  # whose pieces each node copies


def go(
    phase: str = "running",
    members: Any = None,
    copies: Any = None,
    retention: CheckpointRetention | None = None,
    processes: Any = None,
    nodes: int = 3,
    **more: Any,
) -> Play:
    members = members or [MemberPlace(node=node, roles=BOTH, cores=4) for node in range(3)]
    policy = Policy(on_node_loss="move", members=members, **more)
    copied = CopyPolicy(NEXT if copies is None else copies)
    play = Play(nodes=nodes, processes=processes or APART, policy=policy, copies=copied, retention=retention)
    return play.reach(phase)


def save(play: Play, step: int, *, copied: bool = True) -> str:
    """Play a checkpoint of both pservers that the next nodes copy."""
    tag = f"step-{step:09d}"
    for rank in (0, 1):
        receipt = {"file": f"pserver-{rank:05d}.safetensors", "bytes": 100, "sha256": "0" * 64, "node": rank}
        saved = {"do": "saved", "role": "pserver", "rank": rank, "tag": tag, "step": step, "checkpoint": True}
        play.did(play.lead.handle(rank, {**saved, **receipt}, play.now))
    keep(play, step)
    play.says(0, "written", tag=tag, checkpoint=True, bytes=10, sha256="0" * 64)
    for action in list(play.actions) if copied else ():
        if isinstance(action, SendOrder) and action.message["do"] == "copy" and action.message["tag"] == tag:
            assert action.node is not None
            play.says(action.node, "copied", tag=tag, of="copy", bytes=100)
    return tag


def start_again(play: Play, *nodes: int) -> None:
    """The nodes that are left are ready for the new epoch; all processes come up where they are now."""
    for node in nodes:
        play.says(node, "hello", epoch=play.lead.epoch, pieces=f"host{node}:9")
    again = orders(play, "again")[-1]
    where = {f"{role}{rank}": node for role, rank, node in APART} | again["moved"]
    for name, attempt in again["attempts"].items():
        if name.startswith("pserver"):
            process = {"role": "pserver", "rank": int(name[7:]), "attempt": attempt, "endpoint": f"new{name}:1"}
            play.says(where[name], "ready", **process)
    for name, attempt in again["attempts"].items():
        if name.startswith("trainer"):
            play.says(where[name], "running", role="trainer", rank=int(name[7:]), attempt=attempt)


def test_trainers_of_a_silent_node_start_elsewhere_and_nothing_is_rolled_back() -> None:
    play = go()
    play.pass_time(NODE_GRACE_S - 1, alive=(0, 1))
    assert play.noted("moved") == []
    play.pass_time(2, alive=(0, 1))
    (event,) = play.noted("moved")
    assert event == {"event": "moved", "role": "trainer", "rank": 2, "node": 0, "from_node": 2}
    (order,) = [one for one in play.actions if isinstance(one, SendOrder) and one.message["do"] == "respawn"]
    assert (order.node, order.message["rank"], order.message["attempt"]) == (0, 2, 2)
    assert (play.lead.phase, play.noted("rolled_back")) == ("running", [])
    for rank, node in ((0, 0), (1, 1), (2, 0)):
        process = {"role": "trainer", "rank": rank, "attempt": 2 if rank == 2 else 1}
        play.says(node, "exited", **process, exit_code=0, stopping=False, message="", tail=[])
    assert play.lead.phase == "finishing"
    for node in (0, 1):
        play.says(node, "idle")
    assert play.ended()["state"] == "succeeded"


def test_trainers_whose_shards_are_on_the_lost_node_are_given_up_and_its_pserver_moves() -> None:
    play = go(members=ON_THEIR_OWN)
    for node in range(3):
        play.says(node, "hello", new=True, pieces=f"host{node}:9")
    tag = save(play, 10)
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2))
    assert [(event["role"], event["rank"]) for event in play.noted("moved")] == [("pserver", 1)]
    assert [(event.get("role"), event.get("rank")) for event in play.noted("lost")] == [(None, None), ("trainer", 1)]
    again = orders(play, "again")[-1]
    assert (again["recover"]["tag"], again["recover"]["left"]) == (tag, {"1": 0})
    assert sorted(again["attempts"]) == ["pserver0", "pserver1", "trainer0", "trainer2"]
    messages = [event["message"] for event in play.noted("warned")]
    lacking = "no node that is left has its shards (SHARDS) or a copy of them (SHARD_COPIES)"
    assert f"the run continues without trainer1: {lacking}" in messages


def test_a_node_of_trainers_with_shards_takes_nothing_with_it_but_its_trainers() -> None:
    play = go(members=ON_THEIR_OWN)
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 1))
    assert (play.noted("moved"), play.noted("rolled_back"), play.lead.phase) == ([], [], "running")
    assert orders(play, "shrink")[-1]["ranks"] == [2]
    for rank in (0, 1):
        play.says(
            rank, "exited", role="trainer", rank=rank, attempt=1, exit_code=0, stopping=False, message="", tail=[]
        )
    assert play.lead.phase == "finishing"


@pytest.mark.parametrize(("whole", "processes"), [(True, APART), (False, [("pserver", 0, 0), ("trainer", 0, 2)])])
def test_a_run_fails_that_cannot_do_without_trainers_whose_shards_are_lost(whole: bool, processes: Any) -> None:
    members = [MemberPlace(node=node, roles=BOTH, shards=(0, 1, 2) if node == 2 else ()) for node in range(3)]
    play = go(members=members, whole=whole, processes=processes)
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 1))
    assert play.lead.phase == "stopping"
    (stop,) = [event for event in play.noted("phase") if event["phase"] == "stopping"]
    assert re.search(r"trainer\d cannot move: no node that is left has its shards", stop["cause"]["message"])


def test_a_trainer_moves_to_the_node_that_has_copies_of_its_shards() -> None:
    members = [MemberPlace(node=node, roles=BOTH, shards=(node, (node - 1) % 4)) for node in range(4)]
    play = go(members=members, processes=[*APART, ("trainer", 3, 3)], nodes=4)
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2, 3))
    assert {(event["role"], event["node"]) for event in play.noted("moved")} == {("pserver", 2), ("trainer", 2)}


def test_what_ended_with_its_supervisor_moves_when_its_guardian_must_be_done() -> None:
    play = go()
    play.alive(0, 1, 2)
    play.lose(2)
    play.pass_time(NODE_GRACE_S - 1, alive=(0, 1))
    assert play.noted("moved") == []
    play.pass_time(2, alive=(0, 1))
    assert len(play.noted("moved")) == 1


@pytest.mark.parametrize(("together", "restarted"), [(True, 5), (False, 4)])
def test_a_pserver_moves_to_the_holder_of_its_copies_and_continues_from_the_newest_checkpoint(
    together: bool, restarted: int
) -> None:
    play = go(together=together)
    for node in range(3):
        play.says(node, "hello", new=True, pieces=f"host{node}:9")
    tag = save(play, 100)
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2))
    order = orders(play, "again")[-1]
    assert order["moved"] == {"pserver1": 2, "trainer1": 2}
    assert len(order["attempts"]) == restarted
    recover = order["recover"]
    assert (recover["tag"], recover["step"]) == (tag, 100)
    assert {piece["file"]: piece["nodes"] for piece in recover["pieces"]} == {
        "pserver-00000.safetensors": [0],
        "pserver-00001.safetensors": [2],
    }
    start_again(play, 0, 2)
    assert play.lead.phase == "running"


def test_a_checkpoint_of_which_nobody_has_all_pieces_is_not_gone_back_to() -> None:
    play = go()
    for node in range(3):
        play.says(node, "hello", new=True, pieces=f"host{node}:9")
    copied = save(play, 100)
    save(play, 200, copied=False)
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2))
    assert orders(play, "again")[-1]["recover"]["tag"] == copied


def test_a_run_whose_checkpoints_are_all_lost_fails_and_names_what_is_missing() -> None:
    play = go(copies={})
    save(play, 100)
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2))
    (cause,) = [note["cause"] for note in play.noted("phase") if note["phase"] == "stopping"]
    assert "no node has pserver-00001.safetensors of step-000000100 (it was on node1), of the" in cause["message"]
    assert orders(play, "again") == []


@pytest.mark.parametrize(("holders", "moved"), [((1, 2), True), ((1,), False)])
def test_a_resumed_run_without_a_checkpoint_yet_goes_back_to_that_one(holders: tuple[int, ...], moved: bool) -> None:
    pieces = [PieceSource(f"pserver-{rank:05d}.safetensors", 1, "0" * 64, at) for rank, at in ((0, (0,)), (1, holders))]
    retention = CheckpointRetention(3, None, CompleteCheckpoint("step-000000100", 100), pieces)
    play = go(retention=retention)
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2))
    if not moved:
        (cause,) = [note["cause"] for note in play.noted("phase") if note["phase"] == "stopping"]
        assert "pserver-00001.safetensors of step-000000100 (it was on node1)" in cause["message"]
        return
    recover = orders(play, "again")[-1]["recover"]
    assert (recover["tag"], [piece["nodes"] for piece in recover["pieces"]]) == ("step-000000100", [[0], [2]])


def test_a_run_with_no_checkpoint_yet_begins_again() -> None:
    play = go()
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2))
    assert orders(play, "again")[-1]["recover"] == {"tag": None, "step": 0, "left": {}}


def test_a_process_that_no_other_node_may_have_ends_the_run() -> None:
    play = go(members=[MemberPlace(node=0, roles=("pserver",)), MemberPlace(node=1, roles=("pserver",))])
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 1))
    (cause,) = [note["cause"] for note in play.noted("phase") if note["phase"] == "stopping"]
    assert cause["message"].endswith(
        "its processes cannot move: trainer2: no other node that is left may run a trainer"
    )


def test_a_node_whose_processes_have_moved_is_not_listened_to() -> None:
    play = go()
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 1))
    process = {"role": "trainer", "rank": 2, "exit_code": 0, "stopping": False, "message": "", "tail": []}
    assert play.says(2, "exited", **process, attempt=2) == []
    assert play.says(2, "idle", stopping=True) == []
    assert play.lead.phase == "running"


def test_a_node_that_comes_back_without_its_processes_is_a_spare() -> None:
    play = go()
    play.alive(0, 1, 2)
    play.lose(2)
    assert play.lead.is_moving(2)
    assert play.says(2, "hello", new=True, spare=True) == []  # its processes have not moved yet
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 1))
    assert not play.lead.is_moving(2)
    play.says(2, "hello", new=True, spare=True, pieces="host2:9")
    (event,) = play.noted("rejoined")
    assert (event["node"], event["message"], play.lead.processes_on(2)) == (2, "it is a spare now", set())
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2))
    assert orders(play, "again")[-1]["moved"] == {"trainer2": 0, "pserver1": 2, "trainer1": 2}
    start_again(play, 0, 2)
    assert play.lead.phase == "running"
    play.pass_time(NODE_GRACE_S + 1, alive=(0,))
    assert play.lead.phase == "stopping"  # that is two of three


def test_a_spare_that_comes_while_the_others_start_again_is_waited_for_and_ends_with_them() -> None:
    play = go()
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2))
    play.says(1, "hello", new=True, spare=True)
    (brief,) = [
        one for one in play.actions if isinstance(one, SendOrder) and one.node == 1 and one.message["do"] == "again"
    ]
    assert "pserver1" in brief.message["moved"]
    start_again(play, 0, 2)
    assert play.lead.phase == "gathering"
    play.says(1, "hello", epoch=play.lead.epoch)
    start_again(play)
    assert play.lead.phase == "running"
    for rank, node in ((0, 0), (1, 2), (2, 2)):
        process = {"role": "trainer", "rank": rank, "attempt": 2}
        play.says(node, "exited", **process, exit_code=0, stopping=False, message="", tail=[])
    for node in range(3):
        play.says(node, "idle")
    assert play.ended()["state"] == "succeeded"


@pytest.mark.parametrize("phase", ["gathering", "pservers", "trainers", "finishing"])
def test_a_node_may_be_lost_in_any_phase(phase: str) -> None:
    play = go(phase)
    if phase == "finishing":
        play.says(0, "idle")
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2))
    assert orders(play, "again")[-1]["moved"]["pserver1"] in (0, 2)
    start_again(play, 0, 2)
    assert play.lead.phase == "running"


def test_a_run_that_survived_a_loss_succeeds_with_a_warning() -> None:
    play = go()
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 1))
    for rank, node in ((0, 0), (1, 1), (2, 0)):
        process = {"role": "trainer", "rank": rank, "attempt": 2 if rank == 2 else 1}
        play.says(node, "exited", **process, exit_code=0, stopping=False, message="", tail=[])
    for node in (0, 1):
        play.says(node, "idle")
    ended = play.ended()
    message = "node2 was lost: no message from it for 30 s; trainer2 moved to node0"
    assert (ended["state"], ended["warnings"]) == ("succeeded", [{"kind": "node_lost", "message": message}])


def test_a_lead_that_has_lost_more_than_half_of_the_nodes_ends_the_run() -> None:
    """The others may be alive, and another lead with them."""
    play = go()
    play.pass_time(NODE_GRACE_S + 1, alive=(0,))
    (cause,) = [note["cause"] for note in play.noted("phase") if note["phase"] == "stopping"]
    left = "only 1 of 3 nodes are left, and the others could continue the run without them"
    assert cause["message"] == f"node1 is lost: no message from it for 30 s; {left}"
    assert (play.noted("moved"), play.noted("rolled_back")) == ([], [])


def test_a_lead_does_not_shrink_to_less_than_half_of_the_nodes_either() -> None:
    apart = [("pserver", 0, 0), *(("trainer", node, node) for node in range(3))]
    play = go(processes=apart, on_trainer_loss="shrink")
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 1))
    assert play.lead.phase == "running"
    play.pass_time(NODE_GRACE_S + 1, alive=(0,))
    assert play.lead.phase == "stopping"
    (stop,) = [event for event in play.noted("phase") if event["phase"] == "stopping"]
    assert "only 1 of 3 nodes are left" in stop["cause"]["message"]


def test_a_lost_node_that_had_nothing_left_to_do_is_not_moved_to() -> None:
    play = go()
    play.says(2, "exited", role="trainer", rank=2, attempt=1, exit_code=0, stopping=False, message="", tail=[])
    play.says(2, "idle", attempts={"trainer2": 1}, stopping=False)
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 1))
    assert [event["node"] for event in play.noted("lost")] == [2]
    assert (play.noted("moved"), play.lead.phase) == ([], "running")
    (warned,) = play.noted("warned")
    assert warned["message"].endswith("no process had to move")
    assert NODE_GRACE_S <= warned["lost_s"] <= NODE_GRACE_S + 1


def test_a_lost_spare_is_not_waited_for() -> None:
    play = go("gathering", processes=[one for one in APART if one[2] != 2])
    play.says(1, "hello")
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 1))
    assert (play.noted("moved"), play.lead.phase) == ([], "pservers")


def test_the_restart_of_a_process_that_a_guardian_killed_is_not_counted() -> None:
    """RESTARTS is 0 here: the lead did not answer its node for a while, which is no fault of the program."""
    play = go()
    killed = {"exit_code": -9, "fenced": True, "stopping": False, "message": "was killed", "tail": [], "worked": False}
    play.says(2, "exited", role="trainer", rank=2, attempt=1, **killed)
    (event,) = play.noted("restarting")
    assert (event["in_s"], event["count"]) == (0.0, "not counted under RESTARTS")
    play.says(1, "exited", role="pserver", rank=1, attempt=1, **killed)
    assert play.lead.phase == "gathering"


@pytest.mark.parametrize("policy", ["move", "fail"])
def test_a_run_does_not_succeed_without_the_last_model_of_a_lost_pserver(policy: str) -> None:
    play = go("finishing") if policy == "move" else Play(nodes=3, processes=APART).reach("finishing")
    for node in (0, 2):
        play.says(node, "idle")
    play.lose(1)
    assert policy == "fail" or play.noted("ended") == []
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2))
    if policy == "move":
        assert [(event["role"], event["rank"]) for event in play.noted("moved")] == [("pserver", 1), ("trainer", 1)]
        assert play.lead.phase == "gathering"
    else:
        assert play.ended()["state"] == "failed"


def test_a_node_that_missed_an_epoch_learns_its_number_with_the_process_that_moves_there() -> None:
    roles: list[Any] = [BOTH, BOTH, ("trainer",)]
    members = [MemberPlace(node=node, roles=roles[node]) for node in range(3)]
    play = go(members=members, processes=[*one_each(2), ("trainer", 2, 2)])
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2))
    start_again(play, 0, 2)
    play.says(1, "hello", new=True, spare=True, pieces="host1:9")
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 1))
    assert play.noted("moved")[-1]["node"] == 1
    assert {order["epoch"] for order in orders(play, "respawn")} == {play.lead.epoch} == {1}


def test_all_go_back_to_a_checkpoint_that_is_whole_also_if_only_trainers_were_lost() -> None:
    """The copy of what node 1 wrote is on node 2."""
    play = go(processes=[("pserver", 0, 0), ("pserver", 1, 1), ("trainer", 0, 2)], nodes=4, copies={2: [1], 3: [0]})
    for node in range(4):
        play.says(node, "hello", new=True, pieces=f"host{node}:9")
    save(play, 10)
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 2, 3))
    assert play.lead.phase == "gathering"
    play.pass_time(NODE_GRACE_S + 1, alive=(0, 3))
    assert play.lead.phase == "stopping"
    (stop,) = [event for event in play.noted("phase") if event["phase"] == "stopping"]
    assert "no node has pserver-00001.safetensors of step-000000010" in stop["cause"]["message"]
