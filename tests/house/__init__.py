"""The rules of the house by theme; `tests/test_house.py` holds the import table."""
