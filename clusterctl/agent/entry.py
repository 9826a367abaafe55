"""What runs on a node between SSH commands: `entry.py supervisor JOB_DIR RUN FDS` and `entry.py guardian ...`.

A guardian lives as long as its supervisor and does nothing: it must be small, and imports nothing before it has to act.
"""

import os
import sys

if __name__ == "__main__":
    lib = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    sys.path.insert(0, lib)
    if sys.argv[1] == "guardian":
        if not os.read(0, 1):
            from clusterctl.agent.guardian import end_run

            end_run(*sys.argv[2:])
    else:
        from clusterctl.agent.supervisor import main

        main(sys.argv[2:])
