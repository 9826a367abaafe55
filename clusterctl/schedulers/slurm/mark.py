"""The first act of a job's script: to see on every node the mark that `submit` has left below ROOT_DIR. Pure."""

from __future__ import annotations

import shlex

#: The exit code of the script if a node does not see the mark.
BLIND = 4
#: What stands in a plan for what `look` returns.
PLANNED = "# submit adds lines here that look on each node for a mark that it leaves below ROOT_DIR.\n\n"
_LOOK = """\
# All nodes have to see the mark that submit has left below ROOT_DIR: the machine of submit reads there what they write.
mark={mark}
blind=$(srun --overlap -N "$SLURM_JOB_NUM_NODES" -n "$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\
  sh -c '[ -e "$0" ] || echo "$SLURMD_NODENAME"' "$mark/submission.json") || exit
if [ -n "$blind" ]; then
  echo "ROOT_DIR is not shared:" $blind "cannot see $mark" | tee "$mark/refused" >&2
  exit {blind}
fi
ln -sfn "${{mark##*/}}" "${{mark%/*}}/$SLURM_JOB_ID"
"""


def look(mark: str) -> str:
    """Return the lines for sh that look for the record at this absolute path, and make it the record of the job."""
    return _LOOK.format(mark=shlex.quote(mark), blind=BLIND)
