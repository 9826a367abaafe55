"""The JSON documents that commands print, each declared once for the code that builds it and for those who read it.

`commands.py` names the documents of each command. Parts that a stage makes itself are declared there: JobOverview,
StatusNode, OldJob. May import `cluster`, `common`, `errors`, `observe`, `prune` and `schedulers`. `local.py` needs only
`common`, since its commands start fast. Start reading at `commands.py`.
"""
