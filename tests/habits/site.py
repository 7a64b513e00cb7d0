"""A site with what spiders use: pages, sessions, files, a sitemap, redirects and errors."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGES = 12


class Site(ThreadingHTTPServer):
    """Counts what it is asked for, by method and path."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def note(self, request: str) -> int:
        with self._lock:
            self.asked[request] += 1
            return self.asked[request]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def do_GET(self) -> None:
        times = self.server.note(f"{self.command} {self.path}")
        match self.path.strip("/").split("/"):
            case ["page", number] if int(number) < PAGES:
                self._page(int(number))
            case ["unstable"] if times == 1:
                self._reply("try again", status=503)
            case ["unstable"]:
                self._reply("<p>stable</p>")
            case ["moved"]:
                self._reply("", status=302, to="/page/1")
            case ["private", number]:
                cookie = re.search(r"user=(\w+)", self.headers.get("Cookie", ""))
                self._reply(f"<h1>{cookie[1] if cookie else 'nobody'} reads {number}</h1>")
            case ["file", number]:
                self._reply(f"file {number}", kind="application/octet-stream")
            case ["sitemap.xml"]:
                urls = "".join(
                    f"<url><loc>{self.server.url}/page/{n}</loc></url>" for n in range(PAGES)
                )
                space = "http://www.sitemaps.org/schemas/sitemap/0.9"
                self._reply(f'<urlset xmlns="{space}">{urls}</urlset>', kind="text/xml")
            case _:
                self._reply("no such page", status=404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.note(f"POST {self.path} {body}")
        user = body.partition("user=")[2]
        cookie = f"user={user}; Path=/"
        self._reply(f"<p>welcome {user}</p>", cookie=cookie)

    def _page(self, number: int) -> None:
        if self.headers.get("If-None-Match") == f'"{number}"':
            self.server.note(f"304 {self.path}")
            self._reply("", status=304)
            return
        links = "".join(f'<a href="/page/{n}">{n}</a>' for n in (2 * number + 1, 2 * number + 2, 0))
        self._reply(f"<html><h1>Page {number}</h1>{links}</html>", etag=f'"{number}"')

    def _reply(
        self,
        text: str,
        status: int = 200,
        kind: str = "text/html",
        cookie: str = "",
        to: str = "",
        etag: str = "",
    ) -> None:
        body = text.encode()
        self.send_response(status)
        headers = {"Content-Type": kind, "Set-Cookie": cookie, "Location": to, "ETag": etag}
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@contextmanager
def serving() -> Iterator[Site]:
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()
