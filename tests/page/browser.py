"""A headless Chromium, driven through a pipe by the DevTools protocol."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
OPTIONS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--no-default-browser-check",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
    ),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
# Chromium reads from 3 and writes to 4; a process of its own moves the ends there, for this one has
# threads of JAX's.
BECOME = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
PATIENCE = 60.0
NOISE = (
    "Runtime.exceptionThrown",
    "Runtime.consoleAPICalled",
    "Log.entryAdded",
    "Audits.issueAdded",
)


class Browser:
    """One browser with one tab.

    Attributes:
        events: what the tab has told since it was last opened, in order.
    """

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        # Above 4, so that none is written over.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers)]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-SEc",
                BECOME,
                *map(str, ends),
                CHROMIUM,
                *OPTIONS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)
        os.close(commands)
        os.close(answers)
        self._buffer, self._count, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        try:
            self._session = None
            self.call("Browser.close")
        except (OSError, TimeoutError):
            self._process.terminate()
        finally:
            self._process.wait(PATIENCE)
            os.close(self._to)
            os.close(self._from)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command and its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path: Path) -> None:
        """Go to a file, and wait until it is loaded; `events` begins anew."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")

    def wait_for(self, method: str, **params: Any) -> None:
        """Until an event with these parameters was told."""
        while not any(
            x["method"] == method and params.items() <= x["params"].items() for x in self.events
        ):
            self._next()

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The visible text of an element."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def press(self, key: str, times: int = 1) -> None:
        """Press a key, as from a keyboard."""
        codes = {
            "ArrowRight": 39,
            "ArrowLeft": 37,
            "Home": 36,
            "End": 35,
            "Tab": 9,
            "Enter": 13,
            "PageUp": 33,
            " ": 32,
        }
        known = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        if key == "Enter":
            known["text"] = "\r"
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **known)
            self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    def complaints(self) -> list[dict[str, Any]]:
        """Console messages, errors and issues."""
        return [event for event in self.events if event["method"] in NOISE]

    def requests(self) -> list[str]:
        """Addresses that were asked for."""
        return [
            x["params"]["request"]["url"]
            for x in self.events
            if x["method"] == "Network.requestWillBeSent"
        ]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium did not answer for {PATIENCE} seconds")
            piece = os.read(self._from, 2**20)
            if not piece:
                raise OSError("Chromium has ended")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message
