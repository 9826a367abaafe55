"""A run that `start` has begun, until it ends, or until all its processes are running: what a person sees of it.

May import the rest of `cli`, and of what is below it the record of a run and streams of events. Start reading at
`follow.py`.
"""
