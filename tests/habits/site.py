"""A site with what spiders use: pages, sessions, files, a sitemap, redirects and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from tests.support.blocking import result_of

PAGES = 12


class Site:
    """Counts what it is asked for, by method and path."""

    url: str

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def start(self) -> web.ServerRunner:
        runner = web.ServerRunner(web.Server(self.respond))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def respond(self, request: web.BaseRequest) -> web.Response:
        if request.method == "POST":
            return await self._log_in(request)
        self.asked[asked := f"GET {request.path}"] += 1
        match request.path.strip("/").split("/"):
            case ["page", number] if int(number) < PAGES:
                return self._page(request, int(number))
            case ["unstable"] if self.asked[asked] == 1:
                return page("try again", status=503)
            case ["unstable"]:
                return page("<p>stable</p>")
            case ["moved"]:
                return page("", status=302, Location="/page/1")
            case ["private", number]:
                return page(f"<h1>{request.cookies.get('user', 'nobody')} reads {number}</h1>")
            case ["file", number]:
                return web.Response(body=f"file {number}".encode())
            case ["sitemap.xml"]:
                urls = "".join(f"<url><loc>{self.url}/page/{n}</loc></url>" for n in range(PAGES))
                space = "http://www.sitemaps.org/schemas/sitemap/0.9"
                text = f'<urlset xmlns="{space}">{urls}</urlset>'
                return web.Response(text=text, content_type="text/xml")
        return page("no such page", status=404)

    async def _log_in(self, request: web.BaseRequest) -> web.Response:
        body = await request.text()
        self.asked[f"POST {request.path} {body}"] += 1
        user = body.partition("user=")[2]
        response = page(f"<p>welcome {user}</p>")
        response.set_cookie("user", user)
        return response

    def _page(self, request: web.BaseRequest, number: int) -> web.Response:
        if request.headers.get("If-None-Match") == f'"{number}"':
            self.asked[f"304 {request.path}"] += 1
            return page("", status=304)
        links = "".join(f'<a href="/page/{n}">{n}</a>' for n in (2 * number + 1, 2 * number + 2, 0))
        return page(f"<html><h1>Page {number}</h1>{links}</html>", ETag=f'"{number}"')


def page(text: str, status: int = 200, **headers: str) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=headers)


@contextmanager
def serving() -> Iterator[Site]:
    """A site in a thread of its own."""
    site = Site()
    runner = result_of(site.start())
    try:
        yield site
    finally:
        result_of(runner.cleanup())
