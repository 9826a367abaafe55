"""The record of a run: its processes, curves, timeline and cause, from events, spec.json and log tails of all nodes.

Every view of a run reads this and nothing else. May import the rest of `observe`, and what that may import. Start
reading at `model.py`; `status.py`, `live.py` and `history.py` make records.
"""
