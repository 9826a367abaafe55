"""Conventions of the code, by topic; `tests/test_house.py` holds the import table."""
