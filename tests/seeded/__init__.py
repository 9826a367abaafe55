"""Seeded faults: what the tests of this project notice.

faults.toml has 120 changes of one operator, bound or branch each, spread over the package. In `tests/`:

    python -m seeded.faults                                  are they all in code that is still there?
    python -m seeded.reach MAP tests/unit/common ...        which blocks does each test file reach? (slow; goes on)
    python -m seeded.run RESULTS --map MAP [PACKAGE...]      which faults do those tests notice? (slow; goes on)

All 120 were caught when they were last run. Run the last one before and after a deletion of tests: the same faults must
be caught. If their code moves, the list follows it. A fault that no test can notice, because it changes no behaviour,
is replaced by another one.
"""
