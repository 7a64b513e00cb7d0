"""A real headless Chromium, driven over its DevTools protocol: nothing else is needed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.support.times import TIMEOUT_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WHY_NOT = "no Chromium on PATH (Debian's package is 'chromium')"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    # Without these it looks for Google's hosts at every start.
    *("--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-extensions"),
)
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32}
TEXTS = {"Enter": "\r", "Space": " "}


class Chromium:
    """A browser process with an empty profile. Start it once a module: that takes a second."""

    def __init__(self) -> None:
        self._profile = Path(tempfile.mkdtemp(prefix="sem-browser-"))

    def start(self) -> Self:
        """Start the process, and return when it can be driven."""
        assert CHROMIUM, WHY_NOT
        self._process = subprocess.Popen(
            [CHROMIUM, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={self._profile}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        note = self._profile / "DevToolsActivePort"  # Chromium writes its port there
        give_up_at = time.monotonic() + TIMEOUT_S
        while True:
            with suppress(FileNotFoundError, ValueError):
                port, path = note.read_text().splitlines()
                self.address = f"ws://127.0.0.1:{port}{path}"
                return self
            assert self._process.poll() is None, "Chromium did not start"
            assert time.monotonic() < give_up_at, "Chromium says no port"
            time.sleep(0.02)

    def remove(self) -> None:
        """End it, with its own helpers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)


class Browser:
    """One page, in a context of its own: no other page shares its storage."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._session = ""
        self._loaded = asyncio.Event()
        self.complaints: list[str] = []
        """The console's errors and warnings, also those of the Content-Security-Policy."""
        self._reader = asyncio.create_task(self._read())

    # The protocol -------------------------------------------------------------------------------

    async def do(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        session = {"sessionId": self._session} if self._session else {}
        await self._socket.send_json(
            {"id": number, "method": method, "params": parameters, **session}
        )
        async with asyncio.timeout(TIMEOUT_S):
            return await reply

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                reply = self._replies.pop(told["id"])
                if reply.done():  # nobody waits for it any more
                    continue
                if "error" in told:
                    reply.set_exception(RuntimeError(told["error"]["message"]))
                else:
                    reply.set_result(told["result"])
            else:
                self._hear(told["method"], told["params"])

    def _hear(self, event: str, told: Any) -> None:
        if event == "Page.loadEventFired":
            self._loaded.set()
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.complaints.append(str(told["args"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])

    async def begin(self) -> None:
        self._context = (await self.do("Target.createBrowserContext"))["browserContextId"]
        made = await self.do(
            "Target.createTarget", url="about:blank", browserContextId=self._context
        )
        attached = await self.do("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            await self.do(f"{domain}.enable")

    async def end(self) -> None:
        self._session = ""
        await self.do("Target.disposeBrowserContext", browserContextId=self._context)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    # What a person does -------------------------------------------------------------------------

    async def open(self, url: str) -> None:
        self._loaded.clear()
        await self.do("Page.navigate", url=url)
        async with asyncio.timeout(TIMEOUT_S):
            await self._loaded.wait()

    async def size(self, width: int, height: int, phone: bool = False) -> None:
        screen = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1}
        await self.do("Emulation.setDeviceMetricsOverride", mobile=phone, **screen)

    async def cut_off(self, offline: bool) -> None:
        """Cut the page off from every server, or connect it again."""
        await self.do("Network.enable")
        anything = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await self.do("Network.emulateNetworkConditions", offline=offline, **anything)

    async def press(self, key: str, shift: bool = False) -> None:
        about = {"key": key if key != "Space" else " ", "code": key}
        about |= {"windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}  # type: ignore[dict-item]
        text = {"text": TEXTS[key]} if key in TEXTS else {}
        await self.do("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        await self.do("Input.dispatchKeyEvent", type="keyUp", **about)

    async def type(self, text: str) -> None:
        await self.do("Input.insertText", text=text)

    async def click(self, selector: str) -> None:
        x, y = await self.see(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f" return [b.x + b.width / 2, b.y + b.height / 2] }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        await self.do("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        left = {"button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            await self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, **left)

    # What a person sees -------------------------------------------------------------------------

    async def see(self, expression: str) -> Any:
        told = await self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in told:
            raise RuntimeError(told["exceptionDetails"]["exception"]["description"])
        return told["result"].get("value")

    async def until(self, expression: str, wanted: Any = True) -> None:
        """Wait until the page is so; nothing tells when."""
        seen: Any = None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while (seen := await self.see(expression)) != wanted:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{expression} is {seen!r}, not {wanted!r}") from None

    async def tree(self) -> list[dict[str, Any]]:
        """The accessibility tree, as screen readers get it: role, name and properties of nodes."""
        told = await self.do("Accessibility.getFullAXTree")
        return [node for node in told["nodes"] if not node["ignored"]]


@asynccontextmanager
async def browsing(chromium: Chromium) -> AsyncIterator[Browser]:
    """A new page with an empty storage, for as long as the `async with`."""
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(chromium.address, max_msg_size=0) as socket,
    ):
        browser = Browser(socket)
        await browser.begin()
        try:
            yield browser
        finally:
            await browser.end()
