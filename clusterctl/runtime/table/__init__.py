"""Declarations of tables: specifications, update rules, initial values, the place of each piece.

Pure functions and values; imports none of the runtime's other folders. Start reading at `spec.py`.
"""
