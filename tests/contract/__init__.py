"""The contract: the program, the public API, files, frames, and recorded specs, states and events.

Tests of the contract speak to clusterctl as users, other versions and other programs do. They stay as they are in a
rewrite of what is behind it; all other tests may go with the code that they test. The contract is in these folders:

| folder | speaks through |
|---|---|
| this one | the keys and types of JSON documents, of events, files and messages of a run, as recorded |
| `e2e/`, `fake/`, `docs/`, `template/` | the program, its output, its exit codes and its documentation |
| `ctr/`, `unit/api/`, `unit/torch_api/` | the public Python API |
| `security/`, `unit/runtime/test_hostile.py` | frames, answers and messages, hostile ones too |
| `real/` | the program, on machines made for it, and the files, caches and processes of the version before |
| `unit/common/recorded/` with `unit/common/test_run_spec.py` | recorded specs |
| `unit/observe/histories.py`, `unit/api/events_recorded.py` | recorded events |
| `unit/runtime/stream/test_older_peers.py` | frames of the version before |
| `unit/config/` | conf.py |

`record.py` records what programs see, from runs of every mode and engine; `seeded/` measures what all of this guards.
"""
