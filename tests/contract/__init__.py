"""The contract: the program, the public API, files, frames, and recorded specs, states and events.

Tests of the contract speak to clusterctl as users, other versions and other programs do. They stay as they are in a
rewrite of what is behind it; all other tests may go with the code that they test. The contract is in these folders:

| folder | speaks through |
|---|---|
| `contract/` | the keys and types of JSON documents, of events, files and messages of a run, as recorded |
| `e2e/`, `docs/`, `template/`, `examples/` | the program, its output, its exit codes and its documentation |
| `api/`, `torch_api/`, `ctr/` | the public Python API |
| `upgrade/` | the files, caches and processes of the version before |
| `common/recorded/` with `common/test_run_spec.py` | recorded specs |
| `observe/histories.py`, `api/events_recorded.py` | recorded events |
| `runtime/stream/test_older_peers.py` | frames of the version before |
| `runtime/test_hostile.py`, `security/` | frames, answers and messages, hostile ones too |
| `faults/`, `slurm/`, `mpi/`, `kubernetes/`, `docker/` | the program, on machines made for it |
| `config/` | conf.py |

`record.py` records what programs see, from runs of every mode and engine; `seeded/` measures what all of this guards.
"""
