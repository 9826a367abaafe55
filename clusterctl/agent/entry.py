"""The programs that run on a node between SSH commands: `entry.py supervisor`, `guardian` and so on."""

import gc
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    if sys.argv[1] == "guardian":
        from clusterctl.agent.lead.lease import losses

        job_dir, run_name, grace_s, *leased = sys.argv[2:]
        for loss in losses(sys.stdin.fileno()) if leased else ("died",):
            from clusterctl.agent.supervisor import guardian

            if loss == "died":
                guardian.end_run(job_dir, run_name, grace_s)
            else:
                guardian.kill_run(job_dir, run_name)
    elif sys.argv[1] == "trainer-in-view":
        from clusterctl.agent.supervisor.trainer_in_view import main as begin_in_view

        begin_in_view(*sys.argv[2:])
    elif sys.argv[1] == "piece-server":
        from clusterctl.agent.replication.process import main as serve_pieces

        serve_pieces(*sys.argv[2:])
    else:
        gc.disable()  # modules are no garbage
        from clusterctl.agent.supervisor.supervisor import main

        gc.freeze()  # searching them for garbage would take 3 ms
        gc.enable()
        main(sys.argv[2:])
