"""What mpirun does: the facts on which clusterctl-rank stands."""

from __future__ import annotations

import json
import re

import pytest

from real.mpi.lab import HOSTS, SLOTS, Lab, end
from support.processes import wait_until

pytestmark = pytest.mark.mpi
PLACE = (
    "import json, os; print(json.dumps({name: value for name, value in os.environ.items() "
    "if name.startswith('OMPI_COMM_WORLD_') or name == 'PMIX_NAMESPACE'} | {'session': os.getsid(0)}))"
)
#: Ranks wait for the others; the one that is told to ends with 5.
ONE_FAILS = 'if [ "$OMPI_COMM_WORLD_RANK" = 3 ]; then exit 5; fi; exec sleep 300'


@pytest.mark.parametrize("by", ["slot", "node"])
def test_ranks_know_their_places(lab: Lab, by: str) -> None:
    code, out, err = end(lab.begin("python3", "-c", PLACE, options=("--map-by", by)))
    assert code == 0, err
    places = [json.loads(text) for text in re.findall(r"\{.*?\}", out)]
    assert len(places) == 8
    assert len({place["PMIX_NAMESPACE"] for place in places}) == 1
    assert {place["OMPI_COMM_WORLD_SIZE"] for place in places} == {"8"}
    assert {place["OMPI_COMM_WORLD_LOCAL_SIZE"] for place in places} == {str(SLOTS)}
    assert len({place["session"] for place in places}) == len(HOSTS)
    local = {int(place["OMPI_COMM_WORLD_RANK"]): int(place["OMPI_COMM_WORLD_LOCAL_RANK"]) for place in places}
    expected = [0, 1] * 4 if by == "slot" else [0] * 4 + [1] * 4
    assert [local[rank] for rank in range(8)] == expected


def test_a_rank_that_fails_ends_all_and_mpirun_with_its_code(lab: Lab) -> None:
    code, _, err = end(lab.begin("sh", "-c", ONE_FAILS))
    assert code == 5, err
    lab.ranks.assert_nothing_left()


def test_a_killed_mpirun_leaves_no_rank_of_its_daemons(lab: Lab) -> None:
    mpirun = lab.begin("sh", "-c", "echo up; exec sleep 300")
    assert mpirun.stdout is not None
    assert {mpirun.stdout.readline() for _ in range(8)} == {"up\n"}
    assert wait_until(lambda: sum(one.command == "sleep 300" for one in lab.ranks.processes()) == 8)
    mpirun.kill()
    lab.ranks.assert_nothing_left()
    mpirun.communicate()
