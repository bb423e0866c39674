"""Who may talk to the server: only pages that it served itself, opened with the token that it printed."""

import ipaddress
import re
import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
READING = frozenset({"GET", "HEAD"})
LARGEST_BODY = 1_000_000  # bytes
PERSON = re.compile(r"[0-9a-f]{12}")
A_YEAR = 365 * 24 * 3600
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FORBIDDEN = "403: open the address that cotrain label printed. It ends in a token that only you know.\n"


@dataclass(frozen=True)
class AccessControl:
    """The token, and the names under which browsers may reach the server."""

    token: str
    port: int
    host: str = "127.0.0.1"

    @property
    def cookie(self) -> str:
        """Cookies of all ports share one jar, so the name holds the port."""
        return f"cotrain-label-{self.port}"

    def accepts(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(errors="replace"), self.token.encode())

    def is_host(self, header: str) -> bool:
        """Whether a browser may use this name. A foreign name that resolves to this machine is an attack."""
        name = _hostname(header)
        if name in LOOPBACK or name == self.host.casefold():
            return True
        return self.host not in LOOPBACK and _is_address(name)


def _hostname(header: str) -> str:
    """`name` of name:port; the port may be that of a tunnel."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]/@\s]+))(?::\d{1,5})?", header)
    return (match[1] or match[2]).casefold() if match else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Middleware: lets requests pass that carry the token and come from our page, and answers 403 to all others."""

    def __init__(self, app: ASGIApp, access: AccessControl) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer: Response | None = self._refusal(scope, headers)
        if answer is None and self._token_in_address(scope):
            answer = self._welcome(headers)
        elif answer is None and not self._has_cookie(headers):
            answer = PlainTextResponse(FORBIDDEN, 403)
        inner: ASGIApp = answer or self.app
        scope["person"] = _cookies(headers).get("cotrain-person", "")
        await inner(scope, _limited(receive), _with_headers(send))

    def _refusal(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        """Why a request is refused whether or not it carries the token."""
        origin = headers.get("origin")
        own = f"http://{headers.get('host', '')}".casefold()
        foreign = origin is not None and origin.casefold() != own
        changes = scope["method"] not in READING
        if not self.access.is_host(headers.get("host", "")) or foreign or (changes and origin is None):
            return PlainTextResponse(FORBIDDEN, 403)
        if headers.get("sec-fetch-site", "none") == "cross-site":
            return PlainTextResponse(FORBIDDEN, 403)
        length = headers.get("content-length", "0")
        if not re.fullmatch(r"\d{1,18}", length, re.ASCII) or int(length) > LARGEST_BODY:
            return PlainTextResponse("413: the request is too large\n", 413)
        return None

    def _token_in_address(self, scope: Scope) -> bool:
        if scope["path"] != "/" or scope["method"] != "GET":
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
        return self.access.accepts(given[0])

    def _has_cookie(self, headers: Headers) -> bool:
        return self.access.accepts(_cookies(headers).get(self.access.cookie, ""))

    def _welcome(self, headers: Headers) -> RedirectResponse:
        """The first visit: the token moves from the address to a cookie, and the browser gets a name."""
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self.access.cookie, self.access.token, httponly=True, samesite="strict")
        person = _cookies(headers).get("cotrain-person", "")
        name = person if PERSON.fullmatch(person) else secrets.token_hex(6)
        answer.set_cookie("cotrain-person", name, httponly=True, samesite="strict", max_age=A_YEAR)
        return answer


def _cookies(headers: Headers) -> dict[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()}
    except CookieError:
        return {}


class TooLarge(Exception):
    """The body is longer than it announced."""


def _limited(receive: Receive) -> Receive:
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > LARGEST_BODY:
            raise TooLarge
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return sending
