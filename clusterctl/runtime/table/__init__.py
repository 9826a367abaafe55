"""Declarations of tables: specifications, update rules, initial values, where each piece is stored.

Pure functions and values; imports nothing of the other folders. Start reading at `spec.py`.
"""
