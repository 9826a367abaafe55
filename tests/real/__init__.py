"""Tests that need what `make test` does not: root, Docker, Slurm, Open MPI, kubectl, other engines, the git history."""
