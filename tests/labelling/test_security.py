"""Nobody gets in without the token, from another page, or to a file outside the folder. No request breaks anything."""

import json
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from cotrain.labelling.security import AccessControl
from tests.data.photos import save
from tests.labelling.served import TOKEN, Client, Served, photos, serving

PATHS = ("/", "/page/main.js", "/api/state", "/api/next?page=1", "/image/0", "/nothing", "/docs", "/openapi.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = photos(tmp_path_factory.mktemp("all") / "photos")
    save(folder.parent / "outside.png")
    (folder / "link.png").symlink_to(folder.parent / "outside.png")
    (folder / "inner.png").symlink_to(folder / "000.png")
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder) as one:
        one.client.name("red", "green")
        yield one


def test_without_the_token_everything_is_forbidden(served: Served) -> None:
    stranger = Client(served.port)
    wrong = Client(served.port, {**served.client.cookies, f"cotrain-label-{served.port}": TOKEN[:-1] + "x"})
    for path in (*PATHS, "/?token=", "/?token=wrong", f"/api/state?token={TOKEN}"):
        for client in (stranger, wrong):
            answer = client.request("GET", path)
            assert (answer.status, answer.headers.get("Set-Cookie")) == (403, None), path
    assert stranger.request("POST", "/api/undo", b"{}").status == 403


def test_the_token_moves_from_the_address_to_a_cookie_that_scripts_cannot_read(served: Served) -> None:
    answer = Client(served.port).request("GET", f"/?token={TOKEN}")
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    for cookie in answer.headers.get_all("Set-Cookie"):
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()


def test_other_origins_are_forbidden(served: Served) -> None:
    body = json.dumps({"name": "intruder"}).encode()
    own = f"127.0.0.1:{served.port}"
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": f"https://{own}"},
        {"Origin": f"http://127.0.0.1:{served.port + 1}"},
        {"Origin": "null"},
        {"Origin": None},
        {"Host": "evil.example"},
        {"Host": f"evil.example:{served.port}", "Origin": f"http://evil.example:{served.port}"},
        {"Host": f"127.0.0.1.evil.example:{served.port}", "Origin": f"http://127.0.0.1.evil.example:{served.port}"},
        {"Host": f"user@{own}"},
        {"Host": ""},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        assert served.client.request("POST", "/api/class", body, **headers).status == 403, headers
        if headers != {"Origin": None}:
            assert served.client.request("GET", "/api/state", **headers).status == 403, headers
    assert [one["name"] for one in served.client.state["classes"]] == ["red", "green"]


def test_a_tunnel_with_another_port_is_allowed(served: Served) -> None:
    tunnel = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
    assert served.client.request("POST", "/api/skip", b'{"images": [{"row": 9}]}', **tunnel).status == 200


@pytest.mark.parametrize(
    ("host", "header", "allowed"),
    [
        ("127.0.0.1", "[::1]:80", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("127.0.0.1", "192.168.1.5", False),
        ("0.0.0.0", "192.168.1.5:8417", True),
        ("0.0.0.0", "evil.example", False),
        ("lab.example", "lab.example:8417", True),
        ("lab.example", "other.example", False),
    ],
)
def test_the_names_under_which_the_server_answers(host: str, header: str, allowed: bool) -> None:
    assert AccessControl(TOKEN, 8417, host).is_host(header) == allowed


def test_every_answer_has_the_headers(served: Served) -> None:
    for client in (served.client, Client(served.port)):
        for path in PATHS:
            headers = client.request("GET", path).headers
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy
            assert headers["Server"] is None


def test_files_outside_the_folder_are_forbidden(served: Served, folder: Path) -> None:
    """By any spelling of a path, and by a link."""
    target = folder.parent / "outside.png"
    spellings = [f"../{target.name}", "../../etc/passwd", str(target), "..\\..\\etc\\passwd", "000.png", "labels.csv"]
    for spelling in spellings:
        for written in (spelling, quote(spelling, safe=""), quote(quote(spelling, safe=""), safe="")):
            for prefix in ("/", "/image/", "/page/", "/api/", "/image/0/", "//"):
                answer = served.client.request("GET", prefix + written.lstrip("/"))
                assert answer.status in (403, 422), prefix + written
                assert b"PNG" not in answer.body and b"root:" not in answer.body
    rows = {path: row for row, path in enumerate(served.session.dataset.paths)}
    assert "link.png" not in rows
    assert "inner.png" in served.session.index
    assert served.client.request("GET", f"/image/{rows['inner.png']}").status == 200
    moved = folder / "001.png"
    moved.unlink()
    moved.symlink_to(target)  # after the start
    assert served.client.request("GET", f"/image/{rows['001.png']}").status == 403


def test_links_are_shown_if_the_user_says_so(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 6)
    save(tmp_path / "outside.png")
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    with serving(folder, follow_links=True) as one:
        assert one.client.request("GET", f"/image/{one.session.dataset.paths.index('link.png')}").status == 200


VALID = [
    ("GET", "/api/state?version=3", None),
    ("GET", "/api/next?page=ab&count=3&have=1&have=2&audit=true", None),
    ("GET", "/api/grid?class=1&count=5", None),
    ("GET", "/api/look/gallery?class=1&start=0&count=5", None),
    ("GET", "/api/card/3", None),
    ("GET", "/image/2?size=small", None),
    ("GET", "/page/style.css", None),
    ("POST", "/api/label", {"class": 1, "images": [{"row": 3, "seen": None}], "how": "key"}),
    ("POST", "/api/clear", {"images": [{"row": 3}], "how": "review"}),
    ("POST", "/api/skip", {"images": [{"row": 4}]}),
    ("POST", "/api/class", {"name": "a name"}),
    ("POST", "/api/rename", {"class": 1, "name": "another"}),
    ("POST", "/api/merge", {"class": 2, "into": 1}),
    ("POST", "/api/undo", {}),
]
ODD = [
    None, True, -1, 0, 1e308, 2**63, 10**400, -(2**70), 0.5, "", "1", "\x00", "\ud800", "../../x", "=1+1",
    "\N{CAT FACE}", "x" * 5000, [], {}, [[]], {"class": {}}, [1] * 600, "NaN", "%00", "<script>", "'", '"',
]  # fmt: skip


def mutated_body(rng: random.Random, body: dict) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(60))
    text = json.dumps(body)
    if kind == 1:
        return text[: rng.randrange(len(text))].encode()
    if kind == 2:
        return (rng.choice(["[", '{"a":']) * rng.choice([10, 50_000])).encode()
    if kind == 3:
        return text.replace("1", rng.choice(["NaN", "1e999", "-0", "01", "Infinity"])).encode()
    changed = json.loads(text)
    place = changed["images"][0] if "images" in changed and rng.random() < 0.5 else changed
    place[rng.choice([*place, "more", "__proto__"])] = rng.choice(ODD)
    return json.dumps(changed).encode()


def mutated_path(rng: random.Random, path: str) -> str:
    kind = rng.randrange(5)
    if kind == 0:
        return path
    if kind == 1:
        place = rng.randrange(1, len(path))
        return path[:place] + quote(chr(rng.randrange(1, 0x3000))) + path[place:]
    if kind == 2:
        name = rng.choice(["class", "count", "start", "have", "page", "size"])
        value = quote(str(rng.choice(ODD))[:2000].encode(errors="replace"))
        return f"{path.split('?')[0]}?{name}={value}"
    if kind == 3:
        return path.replace("/", rng.choice(["//", "/../", "/%2e%2e/", "/./", "/%2f"]))
    return "/" + quote(rng.randbytes(rng.randrange(30)))


@pytest.mark.system
def test_a_thousand_mutated_requests_break_nothing_and_write_nothing_outside(tmp_path: Path) -> None:
    base = tmp_path / "base"
    folder = photos(base / "photos", 12)
    cwd = os.getcwd()
    rng, codes = random.Random(0), dict[int, int]()
    with serving(folder) as one:
        one.client.name("red", "green")
        for _ in range(1000):
            method, path, body = rng.choice(VALID)
            method = rng.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]) if rng.random() < 0.1 else method
            sent = None if body is None else mutated_body(rng, body)
            headers = {"Content_Type": rng.choice(["text/plain", "application/xml", ""])} if rng.random() < 0.1 else {}
            answer = one.client.request(method, mutated_path(rng, path), sent, **headers)
            codes[answer.status] = codes.get(answer.status, 0) + 1
        assert one.client.state["total"] == 12
        labels = one.session.history.labels
    assert max(codes) < 500, codes
    assert {200, 403, 422} <= codes.keys()
    assert {path.name for path in base.iterdir()} == {"photos"}
    own = {".labels-history.lock", "labels-history.jsonl", "labels.csv"}
    assert {path.name for path in folder.iterdir()} <= own | {f"{row:03d}.png" for row in range(12)}
    assert os.getcwd() == cwd
    with serving(folder) as one:
        assert one.session.history.labels == labels


def test_garbage_on_the_wire_is_survived(served: Served) -> None:
    negative = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n"
    for sent in (b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 200_000, negative):
        with socket.create_connection(("127.0.0.1", served.port)) as wire:
            wire.settimeout(20)
            try:
                wire.sendall(sent)
                wire.shutdown(socket.SHUT_WR)
                wire.recv(1000)
            except TimeoutError:
                pytest.fail("it neither answers nor hangs up")
            except OSError:
                pass  # it hung up, perhaps before all was sent
    assert served.client.state["total"]


def test_a_body_that_is_too_large_is_refused(served: Served) -> None:
    assert served.client.request("POST", "/api/class", b"[" + b" " * 1_100_000).status == 413
    assert served.client.request("POST", "/api/class", None, Content_Length="99999999").status == 413
