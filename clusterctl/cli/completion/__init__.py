"""Completion of commands, options and their values in bash, zsh and fish.

A shell asks at every press of Tab, so what answers it imports neither typer nor conf.py's Python, and asks no node: it
reads `table.json`, which is made of the declarations, and the cache of what commands have seen. May import `common`.
Start reading at `answer.py`.
"""
