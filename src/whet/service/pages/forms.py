"""What the pages with forms share: their call of the hub, owners to choose from, what follows a form that was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Form, Request
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from whet.dashboard.pages.rendering import render, root_of
from whet.hub.api.call import ListRange, RequestBody, Words
from whet.hub.errors import HubError
from whet.hub.policy import Role
from whet.service.domain.access import RequestUser

Body = TypeVar("Body", bound=RequestBody)
Text = Annotated[Words, Form(max_length=2_000)]
"""A field of a form."""


ALL = ListRange(200)


def viewer_in(request: Request) -> RequestUser:
    viewer = request.state.dashboard.viewer
    assert isinstance(viewer, RequestUser)
    return viewer


def owners_of(viewer: RequestUser, role: Role) -> list[str]:
    """The owners in which a viewer has this role at least; its own name first."""
    return sorted(
        (name for name, has in viewer.roles.items() if has >= role), key=lambda name: (name != viewer.name, name)
    )


def filled(body: type[Body], **values: Any) -> Body:
    """The body of a request of the API, from fields of a form. Raises `HubError`, naming the field that is wrong."""
    try:
        return body(**{name: value for name, value in values.items() if value != ""})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise HubError("invalid", f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None


def sent(request: Request, do: Callable[[], Any], then: str | None, page: Callable[[], Response]) -> Response:
    """Do what a form asks and go to `then`, a path below the root; without one `page` is shown, with what was `made`.

    Where it was refused, `page` is shown with the reason.
    """
    request.state.made = None
    try:
        request.state.made = do()
    except HubError as error:
        if error.code == "unauthenticated":
            raise
        request.state.refused = error
        return page()
    if then is None:
        return page()
    return RedirectResponse(root_of(request) + then, status_code=303)


def form_page(request: Request, template: str, *, problem: str = "", **values: Any) -> Response:
    """A page with a form. Its template has `made`, by the form that was sent, and the `problem` it was refused for."""
    refused: HubError | None = getattr(request.state, "refused", None)
    status, problem = (200, problem) if refused is None else (refused.status, str(refused))
    return render(request, template, status, problem=problem, made=getattr(request.state, "made", None), **values)


def confirm(request: Request, *, title: str, text: str, button: str, target: str, back: str) -> Response:
    """A page that asks before something is done that cannot be undone. `target` and `back` are paths below the root."""
    return form_page(request, "confirm.html", title=title, text=text, button=button, target=target, back=back)
