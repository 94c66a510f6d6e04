"""HTTP routes of the gate: the checks for proxies and for a site's backend, and the waiting page."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qs, urlencode

import msgspec

from headgate.gate.gate import NICKNAME, Gate, GateRequest, Verdict
from headgate.gate.page import PageState, choose_language, render, texts_of
from headgate.gate.passes import Visitor, read_cookies, set_cookie
from headgate.gate.problems import MustWait, RevocationsFull
from headgate.gate.returns import on_other_host, return_target, safe_return
from headgate.gate.wire import BypassHeader, BypassRequest, CheckAnswer, CheckQuery, GateQuery, RevokeRequest, WaitQuery
from headgate.http.routes import Access, Answer, Call, Mount, Operation, Receive, Scope, Send, header_value, mounted
from headgate.kit.ids import member_id, thing_name
from headgate.kit.problems import InvalidRequest, NotFound, RateLimited, StoreUnavailable
from headgate.waiting_room.model import EntryArguments, State
from headgate.waiting_room.policy import Theme
from headgate.waiting_room.problems import QueueClosed, QueueFull, QueueUnknown
from headgate.waiting_room.waiting_room import WaitingRoom

RETRY_SECONDS: Final = 5
_PASS: Final = Answer(b"")
COOKIE: Final = {"Cookie": "the visitor's, with their place or their pass"}
IS_THE_PAGE: Final = "is the waiting page's address"


def operations(gate: Gate, room: WaitingRoom) -> list[Operation]:
    """List the routes that have one method."""

    async def check_gate(call: Call) -> CheckAnswer:
        query: CheckQuery = call.query
        if query.resource:
            thing_name(query.resource, "resource")
        if query.event_type:
            thing_name(query.event_type, "eventType")
        if not query.resource and not query.path:
            raise InvalidRequest("Say which resource or path is asked for.", field="resource")
        verdict = await gate.check(
            GateRequest(
                call.namespace,
                resource=query.resource,
                event_type=query.event_type,
                target=query.path.encode(),
                user_id=member_id(query.user_id, "userId"),
            )
        )
        if verdict.passes:
            return CheckAnswer("pass", queue=verdict.queue or None, reason=verdict.reason)
        rank = verdict.status.rank if verdict.status else None
        return CheckAnswer(
            "wait",
            queue=verdict.queue,
            rank=rank,
            wait_url=wait_url(call.namespace, verdict.queue, query.path.encode() or b"/"),
            reason=verdict.reason,
        )

    async def revoke_pass(call: Call) -> None:
        request: RevokeRequest = call.body
        thing = room.queues.thing(call.namespace, call.path["queue"])
        await gate.revoke(thing, member_id(request.user_id, "userId"), who=call.caller.name)

    async def sign_bypass(call: Call) -> BypassHeader:
        request: BypassRequest = call.body
        thing = room.queues.thing(call.namespace, call.path["queue"])
        guard = await gate.rules.read(thing)
        if guard is None:
            raise QueueUnknown
        if not guard.policy.bypass.header:
            raise InvalidRequest("This queue's policy names no bypass header.", field="bypass.header")
        value = (await gate.keys()).seal_bypass(thing.tag, int(gate.rules.now()) + request.for_seconds)
        return BypassHeader(guard.policy.bypass.header, value, request.for_seconds)

    def route(method: str, path: str, handler: Any, summary: str, access: Access, **more: Any) -> Operation:
        return Operation(method, path, handler, summary, access=access, tag="gate", **more)

    return [
        route(
            "POST", "/api/admin/queues/{queue}/revoke", revoke_pass, "End somebody's pass on every gate", Access.ADMIN,
            description="Refused everywhere within a second, and the seat is free. They may stand in line again.",
            body=RevokeRequest, errors=(QueueUnknown, RevocationsFull), namespaced=True,
        ),
        route(
            "POST", "/api/admin/queues/{queue}/bypass", sign_bypass,
            "Sign the header with which a program of the site's own passes the gate", Access.ADMIN, body=BypassRequest,
            answer=BypassHeader, errors=(QueueUnknown,), namespaced=True,
        ),
        route(
            "GET", "/api/gate/check", check_gate, "Ask whether a user may go on to a resource, or must wait", Access.SERVICE,
            query=CheckQuery, answer=CheckAnswer, errors=(StoreUnavailable, QueueFull, QueueClosed), namespaced=True, prompt=True,
        ),
        route(
            "GET", "/gate/nginx", _Nginx(gate).ask, "Ask for nginx, before each request", Access.PUBLIC, query=GateQuery,
            description="For auth_request: the resource is in the address that nginx was configured with, or the path is matched, "
            "as X-Original-URI has it.",
            limit="gate", name="ask_for_nginx", prompt=True,
            headers={"X-Original-URI": "the path that the visitor asked for, set by nginx", **COOKIE},
            answers={
                200: "Let through, as a pass in Set-Cookie says.",
                401: f"Must wait: X-Headgate-Location {IS_THE_PAGE}.",
            },
        ),
        route(
            "GET", "/wait/{queue}", _WaitPage(gate, room).show, "The waiting page", Access.PUBLIC, query=WaitQuery,
            content_type="text/html; charset=utf-8", other_statuses=(302, 404), limit="gate", namespaced=True,
        ),
    ]  # fmt: skip


def mount(gate: Gate) -> Mount:
    """Mount the checks of proxies that send the visitor's own method, for which routes are too narrow."""

    def route(path: str, summary: str, description: str, **more: Any) -> Operation:
        return Operation(
            "GET", path, mounted, summary, description=f"{description} A browser is sent to the waiting page, anybody else gets 429.",
            access=Access.PUBLIC, tag="gate", limit="gate", any_method=True, errors=(MustWait,),
            answers={200: "Let through, as a pass in Set-Cookie says.", 302: f"Must wait: Location {IS_THE_PAGE}."}, **more,
        )  # fmt: skip

    forwarded = {"X-Forwarded-Uri": "the path that the visitor asked for, set by the proxy", **COOKIE}
    routes = (
        route(
            "/gate/forward", "Ask for Caddy or Traefik, before each request", "For forward_auth and ForwardAuth.",
            query=GateQuery, headers=forwarded, name="ask_for_forward",
        ),
        route(
            "/gate/envoy/{path:path}", "Ask for Envoy, before each request",
            "For ext_authz, which appends the path that the visitor asked for.", headers=COOKIE, name="ask_for_envoy",
        ),
    )  # fmt: skip
    return Mount("/gate", _Proxies(gate), Access.PUBLIC, limit="gate", bearer=False, routes=routes)


class _Nginx:
    """`/gate/nginx`; nginx asks before each request, so the answer to a visitor with a pass is cheap."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def ask(self, call: Call) -> Answer:
        """Check a request; nginx accepts only 2xx, 401 and 403, so the page's address is in a header."""
        query: GateQuery = call.query
        target = call.headers.get(b"x-original-uri", b"/")
        secure = is_secure(call)
        verdict = await self._gate.check(
            GateRequest(
                query.namespace,
                query.resource,
                query.event_type,
                target,
                call.client,
                "",
                read_cookies(call.headers.get(b"cookie"), secure=secure),
                call.headers,
                call.spend,
            )
        )
        if verdict.passes and verdict.visitor is None:
            return _PASS
        headers = await cookie_headers(self._gate, verdict.visitor, secure=secure)
        if verdict.passes:
            # The site's answer will carry this pass, so no cache may store it.
            return Answer(b"", 200, {**headers, "X-Headgate-Cache": "no-store"})
        headers["X-Headgate-Location"] = wait_url(query.namespace, verdict.queue, target)
        return Answer(b"", 401, headers)


class _Proxies:
    """`/gate/forward` and `/gate/envoy`, with any method."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["headgate"]
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        name, _, rest = path.removeprefix(b"/gate/").partition(b"/")
        if name == b"envoy":
            # Envoy appends the path and query of the visitor's request, so the query holds no options of ours.
            query: bytes = scope["query_string"]
            answer = await self._answer(call, {}, b"/%b?%b" % (rest, query) if query else b"/" + rest)
        elif name == b"forward" and not rest:
            options = {key: values[0] for key, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
            answer = await self._answer(call, options, call.headers.get(b"x-forwarded-uri") or b"/")
        else:
            raise NotFound
        headers = [(key.lower().encode(), header_value(value)) for key, value in answer.headers.items()]
        body = answer.body if isinstance(answer.body, bytes) else b""
        headers += [(b"cache-control", b"no-store"), (b"content-length", b"%d" % len(body))]
        if body:
            headers.append((b"content-type", answer.content_type.encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _ask(self, call: Call, options: dict[str, str], target: bytes) -> tuple[Verdict, dict[str, str]]:
        """Check the request that a proxy describes; give the verdict and the headers of the answer."""
        secure = is_secure(call)
        resource = thing_name(options["resource"], "resource") if "resource" in options else ""
        verdict = await self._gate.check(
            GateRequest(
                thing_name(options.get("namespace", "default"), "namespace"),
                resource=resource,
                event_type=thing_name(options["eventType"], "eventType") if "eventType" in options else "",
                target=target,
                client=call.client,
                cookies=read_cookies(call.headers.get(b"cookie"), secure=secure),
                headers=call.headers,
                spend=call.spend,
            )
        )
        return verdict, await cookie_headers(self._gate, verdict.visitor, secure=secure)

    async def _answer(self, call: Call, options: dict[str, str], target: bytes) -> Answer:
        """Answer as to the visitor, since Traefik and Caddy pass on all but 2xx, and Envoy all but 200 and 5xx."""
        verdict, headers = await self._ask(call, options, target)
        if verdict.passes:
            if "Set-Cookie" in headers:
                # The site's answer will carry this pass, so no cache may store it.
                headers["X-Headgate-Cache"] = "no-store"
                # Caddy can copy a header to its answer, but not Set-Cookie itself.
                headers["X-Headgate-Set-Cookie"] = headers["Set-Cookie"]
            return Answer(status=200, headers=headers)
        page = wait_url(options.get("namespace", "default"), verdict.queue, target)
        if "text/html" in (call.header("accept") or ""):
            return Answer(status=302, headers={**headers, "Location": page})
        if verdict.refusal is not None:
            raise verdict.refusal
        rank = verdict.status.rank if verdict.status else None
        problem = MustWait(retry_after=RETRY_SECONDS, queue=verdict.queue, rank=rank, waitUrl=page)
        headers["Retry-After"] = str(RETRY_SECONDS)
        body = msgspec.json.encode(problem.document())
        return Answer(body, 429, headers, content_type="application/problem+json")


class _WaitPage:
    """`/wait/{queue}`: enters the visitor into the queue if necessary, and shows their status."""

    def __init__(self, gate: Gate, room: WaitingRoom) -> None:
        self._gate = gate
        self._room = room

    async def show(self, call: Call) -> Answer:
        query: WaitQuery = call.query
        queue = thing_name(call.path["queue"], "queue")
        secure = is_secure(call)
        host = call.header("host") or ""
        thing = self._room.queues.thing(call.namespace, queue)
        guard = self._gate.rules.guard(thing)
        back = safe_return(query.return_to, host, guard.policy.return_hosts if guard else ())
        language = choose_language(query.lang, call.header("accept-language"))
        state = PageState(
            queue=queue,
            namespace=call.namespace,
            language=language,
            return_url=back,
            status={},
            message=guard.policy.message if guard else "",
            theme=guard.policy.theme if guard else Theme(),
            opens_at=guard.policy.opens_at if guard else None,
            now=self._gate.rules.now(),
            plain=query.plain == "1",
        )
        words = texts_of(language)
        visitor = await self._gate.read_visitor(read_cookies(call.headers.get(b"cookie"), secure=secure))
        try:
            if visitor is None:
                call.spend("entry")
                visitor = self._gate.new_visitor()
            entry = await self._room.entry(call.namespace, queue, EntryArguments(NICKNAME, visitor.id, trusted=True))
        except QueueUnknown:
            if not query.return_to:  # there is no page of the site to send the visitor back to
                return _page(msgspec.structs.replace(state, missing=True), 404, {})
            return _redirect(back, {})
        except QueueFull:
            return _page(msgspec.structs.replace(state, notice=words["full"]), 200, {})
        except QueueClosed:
            if guard is not None and guard.policy.template:
                return _redirect(back, {})  # its template was deleted, so the gate passes every visitor
            return _page(msgspec.structs.replace(state, notice=words["closed"]), 200, {})
        except RateLimited as error:
            seconds = str(int(error.retry_after or RETRY_SECONDS))
            headers = {"Retry-After": seconds, "Refresh": seconds}
            return _page(msgspec.structs.replace(state, notice=words["crowded"]), 429, headers)
        except StoreUnavailable:
            headers = {"Retry-After": str(RETRY_SECONDS), "Refresh": str(RETRY_SECONDS)}
            return _page(msgspec.structs.replace(state, notice=words["unavailable"]), 503, headers)
        headers = await cookie_headers(self._gate, visitor, secure=secure)
        if entry.status in (State.PROMOTED, State.ACTIVE) and not on_other_host(back, host):
            return _redirect(back, headers)
        status = msgspec.to_builtins(entry)
        state = msgspec.structs.replace(
            state,
            status=status,
            user_id=visitor.id,
            place_token=entry.place_token,
            other_host=on_other_host(back, host),
        )
        return _page(state, 200, headers)


def wait_url(namespace: str, queue: str, target: bytes) -> str:
    """Give the waiting page's address for a request."""
    query = {"return": return_target(target)}
    if namespace != "default":
        query["namespace"] = namespace
    return f"/wait/{queue}?{urlencode(query)}"


async def cookie_headers(gate: Gate, visitor: Visitor | None, *, secure: bool) -> dict[str, str]:
    """Give the header that sets a visitor's cookie, if there is a visitor to write."""
    if visitor is None:
        return {}
    return {"Set-Cookie": set_cookie((await gate.keys()).seal(visitor), secure=secure)}


def is_secure(call: Call) -> bool:
    """Tell whether the visitor uses https: by X-Forwarded-Proto of the proxy in front, else by the connection."""
    proto = call.headers.get(b"x-forwarded-proto")
    if proto:
        return proto == b"https" or (b"," in proto and proto.split(b",")[0].strip() == b"https")
    return call.scheme == "https"


def _redirect(address: str, headers: dict[str, str]) -> Answer:
    return Answer(status=302, headers={**headers, "Location": address, "Cache-Control": "no-store"})


def _page(state: PageState, status: int, headers: dict[str, str]) -> Answer:
    page = render(state)
    return Answer(page.body, status, {**page.headers, **headers}, content_type="text/html; charset=utf-8")
