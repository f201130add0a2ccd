"""`verl-wizard serve`: the real server, driven by a web socket and by a browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from wizard.commands.serve import MISSING, is_loopback
from wizard.plan_file import FILE_NAME, load_plan

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve", reason="the extra [web] is not installed")
SECONDS = 60
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
F3 = "\x1bOR"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """The server as a process, and the address it told."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wizard", "serve", "--port", str(self.port)],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(rf"http://127\.0\.0\.1:{self.port}/\S{{20,}}/", line)
        assert found, line
        self.url = found[0]
        until(self._listens, "it does not listen")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def wizards(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path)
    yield found
    below = found.wizards() if found.process.poll() is None else []
    found.process.terminate()
    found.process.wait(SECONDS)
    psutil.wait_procs(below, timeout=SECONDS)
    assert [one for one in below if one.is_running()] == []


def until(true: object, what: str) -> None:
    deadline = time.monotonic() + SECONDS
    assert callable(true)
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_web_socket_drives_a_wizard_that_ends_with_it_and_keeps_the_answers(served: Served, tmp_path: Path):
    async def drive() -> None:
        async with aiohttp.ClientSession() as session:
            page = await (await session.get(served.url)).text()
            address = re.search(r'data-session-websocket-url="([^"]+)"', page)
            assert address
            assert address[1] == served.url.replace("http:", "ws:") + "ws"
            async with session.ws_connect(address[1] + "?width=100&height=30") as socket_:
                await seen(socket_, b"1/10")
                for title in (b"2/10", b"3/10", b"4/10"):
                    await socket_.send_str(json.dumps(["stdin", F3]))
                    await seen(socket_, title)
                assert served.wizards()

    async def seen(socket_: object, text: bytes) -> None:
        data = b""
        while text not in data:
            message = await asyncio.wait_for(socket_.receive(), SECONDS)  # type: ignore[attr-defined]
            assert message.type is aiohttp.WSMsgType.BINARY, message
            data += message.data

    asyncio.run(drive())
    until(lambda: not served.wizards(), "the wizard outlives its connection")
    assert load_plan(tmp_path / FILE_NAME).model.id == "tiny"


@pytest.mark.parametrize("path", ["", "ws", "static/js/textual.js", "wrong/", "wrong/ws"])
def test_without_the_secret_there_is_nothing(served: Served, path: str):
    async def status() -> int:
        headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Origin": "http://evil.example"}
        async with aiohttp.ClientSession() as session:
            return (await session.get(f"http://127.0.0.1:{served.port}/{path}", headers=headers)).status

    assert asyncio.run(status()) == 404
    assert served.wizards() == []


def test_it_listens_on_this_machine_only(served: Served):
    listening = [c.laddr for c in psutil.Process(served.process.pid).net_connections() if c.status == "LISTEN"]
    assert [(one.ip, one.port) for one in listening] == [("127.0.0.1", served.port)]


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")
def test_a_browser_shows_it_and_takes_keys(served: Served, tmp_path: Path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.goto(served.url)
        page.wait_for_selector(".xterm-screen", timeout=SECONDS * 1000)
        until(lambda: served.wizards(), "no wizard was started")
        page.wait_for_selector("body.-first-byte", timeout=SECONDS * 1000)
        page.locator(".xterm-helper-textarea").focus()
        deadline = time.monotonic() + SECONDS
        while not (tmp_path / FILE_NAME).exists():
            assert time.monotonic() < deadline
            page.wait_for_timeout(100)
        page.keyboard.press("F8")
        # Saved with each step: only keys that arrived lead there.
        before = (tmp_path / FILE_NAME).read_bytes()
        for _ in range(4):
            page.keyboard.press("F3")
            page.wait_for_timeout(300)
        page.keyboard.press("Tab")
        while (tmp_path / FILE_NAME).read_bytes() == before:
            assert time.monotonic() < deadline, "no key arrived"
            page.keyboard.press("F3")
            page.wait_for_timeout(300)
        browser.close()
    until(lambda: not served.wizards(), "the wizard outlives its tab")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wizard", "serve", *arguments], capture_output=True, text=True, check=False, timeout=SECONDS
    )  # fmt: skip


def test_a_taken_port_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_open_host_is_warned_of(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-m", "wizard", "serve", "--host", "0.0.0.0", "--port", str(free_port())],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert "can run code here as you" in process.stderr.readline()
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


def test_a_missing_extra_is_said(tmp_path: Path):
    code = (
        "import sys, importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'textual_serve' else find(name, *rest)\n"
        "import wizard.cli as cli\nsys.exit(cli.main(['serve']))"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (2, f"verl-wizard: {MISSING}\n")


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.evil.example", False)],
)  # fmt: skip
def test_what_only_this_machine_reaches(host: str, own: bool):
    assert is_loopback(host) is own
