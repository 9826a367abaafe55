"""What is going on: status of jobs, their logs and events, from all nodes."""
