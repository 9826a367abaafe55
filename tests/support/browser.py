"""A headless Chromium that is driven over a pipe with its DevTools protocol: one page at a time."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
WITHOUT_CHROMIUM = "no chromium on this machine; on Debian: apt-get install chromium"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync"),
)


class Browser:
    """`complaints` are the errors and warnings of the page's console, `requests` the addresses that it asked for."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to = to_browser
        self._from = from_browser
        self._received = b""
        self._calls = 0
        self._session: str | None = None
        self._loads = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result. Raises if the browser refuses it."""
        self._calls += 1
        number = self._calls
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            data = os.read(self._from, 1 << 20)
            if not data:
                raise AssertionError("the browser has ended")
            self._received += data
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._take(message.get("method", ""), message.get("params", {}))
        return message

    def _take(self, event: str, about: dict[str, Any]) -> None:
        if event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(about["entry"]["text"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str(about["args"]))
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Page.loadEventFired":
            self._loads += 1

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(
        self,
        file: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        media: str = "",
        scripts: bool = True,
        query: str = "",
    ) -> None:
        """Load a page and forget what the page before it said and asked for."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=scheme)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.complaints, self.requests, loads = [], [], self._loads
        self.call("Page.navigate", url=file.as_uri() + (f"?{query}" if query else ""))
        while self._loads == loads:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page, or what it promises."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def rows(self, heading: str) -> list[list[str]]:
        """Return the texts of the cells of the first table below the section's heading, the table's head first."""
        find = (
            f"[...document.querySelectorAll('h2')].find(one => one.textContent === {json.dumps(heading)})"
            ".parentElement.querySelectorAll('table')[0]"
        )
        return self.cells(find)

    def cells(self, table: str) -> list[list[str]]:
        found: list[list[str]] = self.evaluate(
            f"[...({table}).rows].map(row => [...row.cells].map(cell => cell.textContent))"
        )
        return found

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Write a picture of the whole page, or of what the window shows."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(taken["data"]))


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Run a browser of its own, with a profile that is removed."""
    assert CHROMIUM is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        # The browser reads commands from descriptor 3 and answers on 4; a shell puts the pipes there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, from_write)]
        moved = ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", *command]
        process = subprocess.Popen(moved, pass_fds=ends, stderr=subprocess.DEVNULL, start_new_session=True)
        for end in (to_read, from_write, *ends):
            os.close(end)
        try:
            one = Browser(to_write, from_read)
            one.attach()
            yield one
        finally:
            os.close(to_write)
            os.close(from_read)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
