"""A headless Chromium, driven over its DevTools protocol through two pipes: real input events."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 60.0
_KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13}
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--remote-debugging-pipe", "--window-size=1400,1000", "--hide-scrollbars", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--no-zygote",
)  # fmt: skip


def find() -> str | None:
    """Return the path of a Chromium, None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page in the browser. What the browser says meanwhile is kept in `told`."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._session: str | None = None
        self._buffer = b""
        self._last = 0
        self.told: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while (answer := self._receive()).get("id") != self._last:
            self.told.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise EOFError("the browser has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def open(self, file: Path, *, scripts: bool = True) -> None:
        """Open a file and wait until it has loaded; its scripts may be disabled."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Page.navigate", url=file.as_uri())
        while not any(one.get("method") == "Page.loadEventFired" for one in self.told):
            self.told.append(self._receive())

    def close_browser(self) -> None:
        self._session = None
        self.call("Browser.close")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression; a promise is waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until what was asked for has been drawn."""
        frame = "requestAnimationFrame"
        self.evaluate(f"new Promise((done) => {frame}(() => {frame}(() => done(1))))")

    def key(self, key: str) -> None:
        text = {} if len(key) > 1 else {"text": key}
        code = _KEYS.get(key, ord(key[0].upper()))
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code,
                  **text)  # fmt: skip
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **params: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **params)

    def click(self, x: float, y: float) -> None:
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def wheel(self, x: float, y: float, delta: float) -> None:
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta)
        self.settle()

    def drag(self, x: float, y: float, dx: float) -> None:
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        for part in (0.5, 1):
            self.mouse("mouseMoved", x + part * dx, y, button="left", buttons=1)
        self.mouse("mouseReleased", x + dx, y, button="left", clickCount=1)
        self.settle()

    def dataset(self, element: str) -> dict[str, str]:
        """Return the data attributes of an element."""
        text = self.evaluate(f"JSON.stringify(document.getElementById('{element}').dataset)")
        return dict(json.loads(text))

    def edge(self, element: str) -> tuple[float, float, float, float]:
        """Return x, y, width and height of an element that has been scrolled to."""
        x, y, width, height = self.evaluate(
            f"(() => {{ const one = document.getElementById('{element}'); one.scrollIntoView();"
            " const edge = one.getBoundingClientRect();"
            " return [edge.x, edge.y, edge.width, edge.height]; })()"
        )
        return x, y, width, height

    def picture(self, file: Path) -> None:
        """Write what is seen as WebP."""
        data = self.call("Page.captureScreenshot", format="webp", quality=75)["data"]
        file.write_bytes(base64.b64decode(data))

    def problems(self) -> list[str]:
        """Return errors of scripts, violated rules and requests beyond the file itself."""
        found = []
        for one in self.told:
            method, params = one.get("method"), one.get("params", {})
            if method == "Runtime.exceptionThrown" or (
                method == "Log.entryAdded" and params["entry"]["level"] == "error"
            ):
                found.append(json.dumps(params))
            if method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("file:", "about:")):
                    found.append(f"request of {url}")
        return found


@contextlib.contextmanager
def browser(program: str, directory: Path) -> Iterator[Page]:
    """Run Chromium with its profile in a directory; it has ended when the block is left."""
    pipes = [_high(fd) for pair in (os.pipe(), os.pipe()) for fd in pair]
    their_in, our_out, our_in, their_out = pipes
    with Path(os.devnull).open("r+b") as null:
        pid = os.posix_spawn(
            program,
            [program, *_FLAGS, f"--user-data-dir={directory}"],
            {"PATH": os.defpath, "HOME": str(directory), "XDG_CONFIG_HOME": str(directory)},
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, null.fileno(), fd) for fd in (0, 1, 2)),
                (os.POSIX_SPAWN_DUP2, their_in, 3),
                (os.POSIX_SPAWN_DUP2, their_out, 4),
            ],
            setsid=True,
        )
    os.close(their_in)
    os.close(their_out)
    page = Page(our_out, our_in)
    try:
        yield page
    finally:
        _end(pid, page)
        os.close(our_out)
        os.close(our_in)


def _end(pid: int, page: Page) -> None:
    with contextlib.suppress(OSError, EOFError, TimeoutError, RuntimeError):
        page.close_browser()
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], DEADLINE_S)[0]:
            os.killpg(pid, signal.SIGKILL)
    finally:
        os.close(pidfd)
    os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what it has left


def _high(fd: int) -> int:
    """Return the descriptor with a number that is none of the child's."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return moved
