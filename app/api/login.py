"""How browsers log in with one-time links, and how the server proves to programs that it knows the token."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from hookcore.delivery.dashboard.trust import MAX_NONCE, PROOF_PATH
from hookcore.reading.answers import LoginLink, Number

from ..formats import StrictJson
from ..serving.guard.access import CODE_S, SESSION_S, Access, Visitor
from ..serving.guard.security import LOGOUT, ONLY_KNOWN, peer_of
from .routing import REFUSALS, answered

router = APIRouter(responses=REFUSALS)


@router.get("/login", include_in_schema=False)
def login(request: Request, code: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Redeem a code and set the session cookie."""
    if b"prefetch" in dict(request.scope["headers"]).get(b"sec-purpose", b""):
        raise HTTPException(403, "login links can't be prefetched: open the link in a browser")
    access: Access = request.app.state.access
    role = access.take_code(code)
    if role is None:
        raise HTTPException(403, "this login link has already been used, or has expired: run `hookcore link`")
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


@router.post("/api/v1/login-link", dependencies=[ONLY_KNOWN], responses={200: answered(LoginLink)[200]})
def login_link(
    request: Request, role: Annotated[Literal["owner", "reader"], Query(description="the browser's access")] = "owner"
) -> Response:
    """Create another link that logs in one browser."""
    access: Access = request.app.state.access
    if not access.settings.token:
        raise HTTPException(409, "this server needs no token: open its address")
    base = f"{request.url.scheme}://{request.headers['host']}{request.scope.get('root_path', '')}"
    return StrictJson(LoginLink(f"{base}/login?code={access.make_code(role)}", Number(CODE_S)))


@router.post(LOGOUT, dependencies=[ONLY_KNOWN], include_in_schema=False)
def logout(request: Request, everyone: bool = False) -> dict[str, int]:
    """Log out this browser, or with `everyone`, which needs the owner, all browsers and unused links.

    Return the number of ended sessions.
    """
    access: Access = request.app.state.access
    visitor: Visitor = request.scope["hookcore"]
    if everyone:
        if visitor.role != "owner":
            raise HTTPException(403, "only an owner can log everyone out: send the full-access token, or log in")
        return {"sessions": access.end_all_sessions()}
    access.end_session(visitor.session)
    return {"sessions": int(bool(visitor.session))}


@router.get(PROOF_PATH, dependencies=[ONLY_KNOWN], include_in_schema=False)
def identity(
    request: Request, nonce: Annotated[str, Query(min_length=16, max_length=MAX_NONCE)]
) -> dict[str, list[str]]:
    """Prove for each token that the server knows it. Trainers and clients send nothing else before they have this."""
    access: Access = request.app.state.access
    return {"proofs": access.proofs(nonce)}
