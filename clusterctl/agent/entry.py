"""What runs on a node between SSH commands: `entry.py supervisor JOB_DIR RUN FDS` and `entry.py guardian ...`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    if sys.argv[1] == "guardian":
        from clusterctl.agent.guardian import main
    else:
        from clusterctl.agent.supervisor import main
    main(sys.argv[2:])
