"""The status, logs and events of jobs, gathered from all nodes."""
