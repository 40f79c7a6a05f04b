"""What belongs to an owner: secrets, webhooks, usage and quota."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from starlette.responses import Response

from whet.dashboard.pages.rendering import PageRoute, address, render
from whet.hub import policy
from whet.hub.api.call import Identity, ListRange, action
from whet.hub.pages.routes import PageCall
from whet.hub.policy import Role
from whet.service.answers import NewWebhookAnswer
from whet.service.api import owners, webhooks
from whet.service.domain.access import QUOTAS, SECRETS, SEE
from whet.service.pages.forms import ALL, Text, confirm, filled, form_page, owners_of, sent, viewer_in

router = APIRouter(route_class=PageRoute)
EVENTS = ("run.queued", "run.starting", "run.running", "run.finished", "run.failed", "run.stopped")
SecretValue = Annotated[str, Form(max_length=1 << 16)]


def _choice(request: Request, owner: str, role: Role) -> tuple[str, list[str]]:
    """The owner that a page is of, and those there are to choose from."""
    viewer = viewer_in(request)
    return owner or viewer.name, owners_of(viewer, role)


@router.get("/secrets")
@action(SECRETS)
def secrets_page(request: Request, call: PageCall, owner: str = "", name: str = "") -> Response:
    owner, known = _choice(request, owner, Role.MAINTAINER)
    items = owners.list_secrets(call, ALL, owner).items
    return form_page(request, "secrets.html", owner=owner, owners=known, secrets=items, name=name)


@router.post("/secrets")
@action(SECRETS)
def set_secret(request: Request, call: PageCall, owner: Text, name: Text, value: SecretValue = "") -> Response:
    def do() -> Any:
        return owners.set_secret(call, owner, name.strip(), filled(owners.SecretBody, value=value))

    return sent(request, do, address("/secrets", {"owner": owner}), partial(secrets_page, request, call, owner, name))


@router.post("/secrets/delete")
@action(SECRETS)
def delete_secret(request: Request, call: PageCall, owner: Text, name: Text) -> Response:
    again = partial(secrets_page, request, call, owner)
    return sent(request, lambda: owners.delete_secret(call, owner, name), address("/secrets", {"owner": owner}), again)


@router.get("/webhooks")
@action(policy.MAINTAIN)
def webhooks_page(request: Request, call: PageCall, owner: str = "", url: str = "") -> Response:
    owner, known = _choice(request, owner, Role.MAINTAINER)
    items = webhooks.list_webhooks(call, ALL, owner).items
    return form_page(request, "webhooks.html", owner=owner, owners=known, webhooks=items, events=EVENTS, url=url)


@router.post("/webhooks")
@action(policy.MAINTAIN)
def add_webhook(
    request: Request,
    call: PageCall,
    owner: Text,
    url: Text,
    events: Annotated[list[str], Form()] = [],  # noqa: B006
) -> Response:
    """The page with the new webhook's signing secret, which is shown only here."""

    def do() -> NewWebhookAnswer:
        return webhooks.add_webhook(call, filled(webhooks.NewWebhook, owner=owner, url=url.strip(), events=events))

    return sent(request, do, None, lambda: webhooks_page(request, call, owner, "" if request.state.made else url))


@router.get("/webhooks/{webhook}")
@action(policy.MAINTAIN)
def deliveries_page(request: Request, call: PageCall, webhook: Identity, cursor: int = 0) -> Response:
    listed = webhooks.list_deliveries(call, ListRange(cursor=max(0, cursor)), webhook)
    return render(request, "deliveries.html", webhook=webhook, deliveries=listed.items, following=listed.next)


@router.get("/webhooks/{webhook}/delete")
@action(policy.MAINTAIN)
def ask_to_delete_webhook(request: Request, call: PageCall, webhook: Identity) -> Response:
    return confirm(
        request,
        title="Delete this webhook?",
        text="What waits for it is not sent any more.",
        button="Delete the webhook",
        target=f"/webhooks/{webhook}/delete",
        back="/webhooks",
    )


@router.post("/webhooks/{webhook}/delete")
@action(policy.MAINTAIN)
def delete_webhook(request: Request, call: PageCall, webhook: Identity) -> Response:
    again = partial(ask_to_delete_webhook, request, call, webhook)
    return sent(request, lambda: webhooks.delete_webhook(call, webhook), "/webhooks", again)


@router.get("/usage")
@action(SEE)
def usage_page(request: Request, call: PageCall, owner: str = "") -> Response:
    owner, known = _choice(request, owner, Role.VIEWER)
    usage = owners.usage(call, owner)
    may_change = viewer_in(request).is_admin
    return form_page(request, "usage.html", owner=owner, owners=known, usage=usage, may_change=may_change)


@router.post("/usage")
@action(QUOTAS)
def set_quota(
    request: Request,
    call: PageCall,
    owner: Text,
    running: Text = "",
    queued: Text = "",
    seconds: Text = "",
    tokens: Text = "",
    cost: Text = "",
) -> Response:
    """Empty fields are no limits."""

    def do() -> Any:
        limits = {"running": running, "queued": queued, "seconds": seconds, "tokens": tokens, "cost": cost}
        body = filled(owners.QuotaBody, **limits)
        return owners.set_quota(call, owner, body)

    return sent(request, do, address("/usage", {"owner": owner}), partial(usage_page, request, call, owner))
