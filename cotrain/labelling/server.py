"""The server: the page, images, and a small API that reads the session and changes labels."""

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from cotrain.labelling.answers import Look, card, cards, grid, look, state
from cotrain.labelling.events import CONFLICT, STRANGER, How, Refused
from cotrain.labelling.journal import NotSaved
from cotrain.labelling.security import PERSON, AccessControl, Guard, TooLarge
from cotrain.labelling.served_images import NotShown, Outside, Size
from cotrain.labelling.session import Session

PAGE = Path(__file__).parent / "page"
MEDIA = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FILES = {file.name: file for file in PAGE.iterdir() if file.suffix in MEDIA}
MOST_AT_ONCE = 500
MOST_ROWS = 2**53  # integers that JavaScript knows exactly
A_DAY = "private, max-age=86400"

Row = Annotated[int, Field(ge=0, lt=MOST_ROWS)]
Class = Annotated[int, Field(ge=1, lt=MOST_ROWS)]
PageName = Annotated[str, Query(pattern=r"^[0-9a-f]{1,32}$")]
HowMany = Annotated[int, Query(ge=1, le=MOST_AT_ONCE)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    how: How = "click"


class OneImage(BaseModel):
    """An image, and the label that the person saw: a class, 0 does not belong, -1 a conflict, null none."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    row: Row
    seen: Annotated[int, Field(ge=CONFLICT, lt=MOST_ROWS)] | None = None


class ImagesBody(Body):
    images: list[OneImage] = Field(min_length=1, max_length=MOST_AT_ONCE)


class LabelBody(ImagesBody):
    number: Annotated[int, Field(ge=STRANGER, lt=MOST_ROWS, alias="class")]


class NameBody(Body):
    name: str = Field(max_length=1000)


class RenameBody(NameBody):
    number: Class = Field(alias="class")


class MergeBody(Body):
    number: Class = Field(alias="class")
    into: Class


def make_app(session: Session, access: AccessControl) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.include_router(_pages())
    app.include_router(_reading(session))
    app.include_router(_writing(session))
    app.add_middleware(Guard, access=access)
    app.add_exception_handler(Refused, lambda _, error: _problem(409, str(error)))
    app.add_exception_handler(NotSaved, lambda _, error: _problem(507, str(error)))
    app.add_exception_handler(TooLarge, lambda _, error: _problem(413, "the request is too large"))
    app.add_exception_handler(Outside, lambda _, error: _problem(403, str(error)))
    app.add_exception_handler(NotShown, lambda _, error: _problem(404, str(error)))
    app.add_exception_handler(RequestValidationError, lambda _, error: _problem(422, _first(error)))
    app.add_exception_handler(HTTPException, _known_problem)
    return app


def _problem(code: int, text: str) -> JSONResponse:
    printable = text.encode(errors="replace").decode()
    return JSONResponse({"problem": printable}, code)


def _known_problem(_: Request, error: Exception) -> JSONResponse:
    """An address that does not exist gets 403 as well: there is nothing else to find here."""
    code = error.status_code if isinstance(error, HTTPException) else 400
    return _problem(403 if code in (404, 405) else code, "this request is not understood")


def _first(error: Any) -> str:
    """The first mistake in a request, without repeating what was sent."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])[:100]
    return f"{place}: {first['msg']}"


def _who(request: Request) -> str:
    person = str(request.scope.get("person", ""))
    return person if PERSON.fullmatch(person) else "unknown"


def _pages() -> APIRouter:
    router = APIRouter()

    def served(name: str) -> Response:
        if name not in FILES:
            raise HTTPException(404)
        return Response(FILES[name].read_bytes(), media_type=MEDIA[FILES[name].suffix])

    @router.get("/")
    def page() -> Response:
        return served("index.html")

    @router.get("/page/{name}")
    def file(name: str) -> Response:
        return served(name)

    return router


def _reading(session: Session) -> APIRouter:
    router = APIRouter()

    @router.get("/api/state")
    def get_state(request: Request, version: int = 0) -> dict[str, Any]:
        """The state, or only its version if the page has it already."""
        return {"version": version} if version == session.revision.number else state(session, _who(request))

    @router.get("/api/next")
    def get_next(
        page: PageName,
        count: HowMany = 6,
        have: Annotated[list[Row], Query(max_length=MOST_AT_ONCE)] = [],  # noqa: B006
        audit: bool = False,
    ) -> list[dict[str, Any]]:
        return cards(session, session.next(page, count, session.index.images(have), audit=audit))

    @router.get("/api/grid")
    def get_grid(number: Annotated[Class, Query(alias="class")], count: HowMany = 24) -> list[dict[str, Any]]:
        return grid(session, number, count)

    @router.get("/api/card/{row}")
    def get_card(row: Annotated[Row, InPath()]) -> dict[str, Any]:
        return card(session, session.index.image(row))

    @router.get("/api/look/{what}")
    def get_look(
        what: Look,
        number: Annotated[Class | None, Query(alias="class")] = None,
        start: Annotated[int, Query(ge=0, lt=MOST_ROWS)] = 0,
        count: HowMany = 48,
    ) -> dict[str, Any]:
        return look(session, what, number, start, count)

    @router.get("/image/{row}")
    def get_image(row: Annotated[Row, InPath()], size: Size = "large") -> Response:
        data, media = session.pictures.encoded(session.index.image(row), size)
        return Response(data, media_type=media, headers={"Cache-Control": A_DAY})

    return router


def _writing(session: Session) -> APIRouter:
    """Every answer is the new state, and is sent when the change is on disk."""
    router = APIRouter()

    def seen(body: ImagesBody) -> dict[str, int | None]:
        return {session.index.image(one.row): one.seen for one in body.images}

    @router.post("/api/label")
    def label(body: LabelBody, request: Request) -> dict[str, Any]:
        session.label(seen(body), body.number, who=_who(request), how=body.how)
        return state(session, _who(request))

    @router.post("/api/clear")
    def clear(body: ImagesBody, request: Request) -> dict[str, Any]:
        session.clear([*seen(body)], who=_who(request), how=body.how)
        return state(session, _who(request))

    @router.post("/api/skip")
    def skip(body: ImagesBody, request: Request) -> dict[str, Any]:
        session.skip([*seen(body)], who=_who(request), how=body.how)
        return state(session, _who(request))

    @router.post("/api/class")
    def new_class(body: NameBody, request: Request) -> dict[str, Any]:
        number = session.new_class(body.name, who=_who(request), how=body.how)
        return {**state(session, _who(request)), "made": number}

    @router.post("/api/rename")
    def rename(body: RenameBody, request: Request) -> dict[str, Any]:
        session.rename(body.number, body.name, who=_who(request), how=body.how)
        return state(session, _who(request))

    @router.post("/api/merge")
    def merge(body: MergeBody, request: Request) -> dict[str, Any]:
        session.merge(body.number, body.into, who=_who(request), how=body.how)
        return state(session, _who(request))

    @router.post("/api/name")
    def introduce(body: NameBody, request: Request) -> dict[str, Any]:
        session.introduce(body.name, who=_who(request), how=body.how)
        return state(session, _who(request))

    @router.post("/api/undo")
    def undo(body: Body, request: Request) -> dict[str, Any]:
        event = session.undo(who=_who(request), how=body.how)
        images = session.index.among(getattr(event, "images", ()))
        return {**state(session, _who(request)), "undone": event.kind, "cards": cards(session, images[:1])}

    @router.post("/api/finish")
    def finish(body: Body, request: Request) -> dict[str, Any]:
        session.finish()
        return state(session, _who(request))

    return router
