"""Write conf.py.example, and the tables of settings in docs/configuration.md, from the fields of Settings.

    python docs/make_settings.py

Text of docs/configuration.md outside of the tables is written by hand.
"""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path

from clusterctl.config.declarations import Setting, Topic
from clusterctl.config.settings import TABLE

ROOT = Path(__file__).parents[1]
EXAMPLE, PAGE = ROOT / "conf.py.example", ROOT / "docs" / "configuration.md"
#: The beginning of conf.py.example; {HOSTS} is the meaning of that setting.
HEAD = """\
# conf.py lists your machines for clusterctl. Only HOSTS is required; every other line shows the default.
# This is a Python file: loops and functions are welcome. Only names in UPPER CASE are settings.
# Those whose names end in _S are in seconds.

# {HOSTS}
HOSTS = [
    "root@10.0.0.10",
    "root@10.0.0.11",
]
# An IPv6 address goes in brackets: "root@[fd00::10]:22". For a host that differs, use Host (any of its arguments):
#   Host("root@10.0.0.12", roles=("trainer",), pservers=0, trainers=2, gpus=4, tags=("gpu",), env={"NAME": "value"},
#        address="192.168.0.12", identity="~/.ssh/other_key", root_dir="/data/clusterctl", name="big", via="ssh")
# A spare, where nothing runs until another host is lost: Host("root@10.0.0.13", spare=True)
# The nodes of a Slurm job: HOSTS = slurm(), for submit and inside an allocation, else HOSTS = slurm(job=12345)
# The hosts and slots of an Open MPI hostfile: HOSTS = openmpi("hostfile")
# Pods with these labels: HOSTS = kubernetes("app=train", namespace="research")
"""


def example() -> str:
    """Return conf.py.example: a passage for each setting, in one line each for those that are rarely needed."""
    hosts, *others = TABLE
    parts = [HEAD.replace("{HOSTS}", hosts.doc)]
    for topic in Topic:
        listed = [one for one in others if one.topic is topic]
        title = "" if topic is Topic.MACHINES else f"\n\n# --- {topic.value} ---\n\n"
        if topic is Topic.RARE:
            parts.append(title + "".join(f"# {one.name} = {one.written}  # {plain(one)}\n" for one in listed))
        else:
            passages = [f"# {plain(one)}\n# {one.name} = {one.written}\n" for one in listed]
            parts.append((title or "\n") + "\n".join(passages))
    return "".join(parts)


def plain(one: Setting) -> str:
    return f"{one.doc} (old name: {one.old})" if one.old else one.doc


def page() -> str:
    """Return docs/configuration.md with the table of each topic, below its heading. Raises LookupError without one."""
    return reduce(with_table, Topic, PAGE.read_text(encoding="utf-8"))


def with_table(text: str, topic: Topic) -> str:
    below = re.compile(rf"^(### {topic.value}\n(?:(?![#|]).*\n)+)(?:\|.*\n)+", re.MULTILINE)
    text, found = below.subn(lambda match: match[1] + table(topic), text)
    if found != 1:
        raise LookupError(f"{PAGE.name} has {found} tables below '### {topic.value}'")
    return text


def table(topic: Topic) -> str:
    rows = [f"| `{one.name}` | {default(one)} | {described(one)} |\n" for one in TABLE if one.topic is topic]
    return "".join(["| setting | default | meaning |\n", "|---|---|---|\n", *rows])


def default(one: Setting) -> str:
    return "required" if one.name == "HOSTS" else f"`{one.written}`"


def described(one: Setting) -> str:
    old = f"Old name: `{one.old}`" if one.old else ""
    return ". ".join(filter(None, (one.meaning, one.more, old)))


if __name__ == "__main__":
    EXAMPLE.write_text(example(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
