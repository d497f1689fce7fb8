"""How a browser logs in, by a link that works once, and how a server proves to a program that it knows the token."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from hookcore.trust import MAX_NONCE, PROOF_PATH

from .access import CODE_S, SESSION_S, Access, Visitor
from .security import LOGOUT, peer_of

router = APIRouter()


class LoginLink(BaseModel):
    """A link that logs one browser in, once."""

    url: str
    expires_s: float


@router.get("/login", include_in_schema=False)
def login(request: Request, code: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Takes a code and gives a cookie."""
    if b"prefetch" in dict(request.scope["headers"]).get(b"sec-purpose", b""):
        raise HTTPException(403, "a login link is opened by a person, not ahead of time")
    access: Access = request.app.state.access
    role = access.take_code(code)
    if role is None:
        raise HTTPException(403, "this login link was used before, or has expired: make a new one with `hookcore link`")
    root, secure = request.scope.get("root_path", ""), request.url.scheme == "https"
    name = access.cookie_name(secure, root)
    answer = RedirectResponse(f"{root}/", 303, {"Cache-Control": "private, no-store"})
    answer.set_cookie(
        name,
        access.open_session(role, peer_of(request.scope, access.settings), name),
        max_age=SESSION_S,
        path=f"{root}/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
    return answer


@router.post("/api/v1/login-link")
def login_link(
    request: Request,
    role: Annotated[Literal["owner", "reader"], Query(description="what the browser may do")] = "owner",
) -> LoginLink:
    """A further link by which one browser can log in."""
    access: Access = request.app.state.access
    if not access.settings.token:
        raise HTTPException(409, "this server needs no token: open its address")
    base = f"{request.url.scheme}://{request.headers['host']}{request.scope.get('root_path', '')}"
    return LoginLink(url=f"{base}/login?code={access.make_code(role)}", expires_s=CODE_S)


class LoggedOut(BaseModel):
    """How many sessions ended."""

    sessions: int


@router.post(LOGOUT, include_in_schema=False)
def logout(request: Request, everyone: bool = False) -> LoggedOut:
    """Log this browser out; with `everyone`, which needs the owner, every browser and every link not opened yet."""
    access: Access = request.app.state.access
    visitor: Visitor = request.scope["hookcore"]
    if everyone:
        if visitor.role != "owner":
            raise HTTPException(403, "only the owner may log everyone out: send the token, or log in as owner")
        return LoggedOut(sessions=access.end_all_sessions())
    access.end_session(visitor.session)
    return LoggedOut(sessions=int(bool(visitor.session)))


class Identity(BaseModel):
    """For each token of the server, the proof that the server knows it."""

    proofs: list[str]


@router.get(PROOF_PATH, include_in_schema=False)
def identity(request: Request, nonce: Annotated[str, Query(min_length=16, max_length=MAX_NONCE)]) -> Identity:
    """Answer a challenge; trainers and clients send nothing else before they have this."""
    access: Access = request.app.state.access
    return Identity(proofs=access.proofs(nonce))
