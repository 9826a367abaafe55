"""The record of a run as one HTML file that needs no network.

May import `common`, `escape` and `observe`. Pure: a record in, text out. Start reading at `page.py`.
"""
