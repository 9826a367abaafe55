"""The output of many nodes as `exec` shows it, without the nodes."""

from __future__ import annotations

import pytest

from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.commands.exec import OutputDisplay
from clusterctl.cli.console import Console
from unit.agent.nodes import NODE


@pytest.mark.parametrize("fold", [None, True, False])
def test_output_received_before_a_node_was_lost_is_shown(fold: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    screen = OutputDisplay(Console(GlobalOptions()), [NODE], fold)
    screen.take(NODE.id, b"last\nwords", False)
    screen.close()
    assert capsys.readouterr().out == "node0: last\nnode0: words\n"
