"""The streams of a command behind the helper."""

from __future__ import annotations

import socket

from clusterctl.transport.keep import frames
from clusterctl.transport.keep.frames import Frames
from clusterctl.transport.keep.process import KeptProcess


def test_output_that_came_with_the_answer_to_the_request_is_not_waited_for() -> None:
    ours, helper = socket.socketpair()
    with ours, helper:
        answer = frames.json_frame(frames.BEGUN), frames.frame(frames.OUTPUT, b"all"), frames.frame(frames.EXIT, b"7")
        helper.sendall(b"".join(answer))
        received = Frames(ours)
        assert received.next()[0] == frames.BEGUN
        about = {"label": "node0", "where": "u@h", "what": "true", "stderr_limit": 100}
        process = KeptProcess(ours, received, resumed=False, **about)  # type: ignore[arg-type]
        done = process.finish(b"", 60)
    assert (done.exit_code, done.stdout) == (7, b"all")
