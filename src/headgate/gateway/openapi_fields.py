"""Descriptions and examples of the fields in the OpenAPI document; a test checks that every struct and field exists.

They are keyed by the struct's name in the document and the field's name on the wire. A description in the struct itself takes
precedence. Fields in `ANYWHERE` mean the same in every struct.
"""

from __future__ import annotations

from typing import Any, Final

ANYWHERE: Final = {
    "queue": "name of the queue",
    "namespace": "where names are looked up; different namespaces see nothing of each other",
    "userId": "who it is about",
    "ticketId": "the one-time ticket, as a bare UUID",
    "sessionId": "the session, named by whoever lets people in",
    "instanceId": "which instance, named anew each time it starts",
    "placeToken": "signed proof of the place; keep it, it brings the place back after a loss of data",
    "epoch": "changes when the store lost data; numbers of different epochs do not compare",
    "revision": "number of the latest change",
    "type": "name of the service",
    "group": "part of a service, such as a region",
    "upstream": "name of the upstream",
    "registration": "number that the registration was answered with; an older one than the latest is refused with `superseded`",
    "nonce": "a random text of one registration, the same when its answer was lost and it is repeated: then it counts once",
}

IN_PATHS: Final = {
    **ANYWHERE,
    "name": "its name",
    "key": "the key, such as `limits` or `eu/limits`",
    "job": "the job's id, as it was answered when the job was accepted",
    "permit": "the permit's id, as it was answered",
    "path": "the rest of the path, as it was asked for",
}

_POLICY: Final = {
    "seats": "`fixed`: `capacity` seats in all; `servers`: the sum of the live servers' seats. A new queue that names a capacity is fixed",
    "capacity": "the seats; with `servers`, an upper limit for all of them together. null sets no limit, but fixed seats need a number; 10000000 is no limit, as in queues of the gate that name no seats",
    "ratePerSecond": "at most so many are called a second; 0 calls nobody, null sets no limit",
    "burst": "at most so many are called at once; null: what the rate brings in a tick",
    "batch": "at most so many are called in a tick; unless named, it grows with the rate",
    "tickMs": "how long a tick is",
    "ticketTtlSeconds": "how long a ticket holds its seat, from the answer that first shows it",
    "sessionTtlSeconds": "how long a session without a server lasts unless it is renewed",
    "graceSeconds": "whoever was not seen for so long when called becomes AWAY, and the next one is called",
    "keepSeconds": "how long the place of somebody AWAY is kept; then they are ABANDONED",
    "reentrySeconds": "how long the seat of a dropped session is kept for its owner",
    "maxLength": "how long the line may be; then 429 `queue_full`. null: no limit",
    "opensAt": "nobody is called before this time, with its zone; people may enter before. null: open",
    "placement": "which server gets the next one: that with the `most-free` seats, or `packed`, the fullest that has one",
    "failMode": "what the gate does with newcomers while the store is away or full: `open` lets them through, `closed` answers 503",
    "finishedSeconds": "how long somebody who is done can still be asked for",
    "paths": "paths that the gate guards with this queue: `*` is anything within a segment, `**` anything at all; at most 100, of at most 512 characters and 8 stars each",
    "bypass": "who passes the gate without standing in line",
    "queueAll": "with `auto`: everybody stands in line, however little traffic there is",
    "returnHosts": "other hosts to which the waiting page may return people",
    "auto": "when the queue switches itself on; null: it is always on",
    "message": "said on the waiting page, at most 500 characters",
    "theme": "colours and logo of the waiting page",
}

_PERSON: Final = {
    "status": "WAITING, then PROMOTED with a ticket, ACTIVE inside, FINISHED; or AWAY, EXPIRED, LEFT, ABANDONED",
    "rank": "1 for the first in line, 0 once called; a rank that was shown never rises",
    "place": "number of the place; lower ones came earlier",
    "eta": "how long the wait will be; null while that is not known",
    "pollAfterMs": "when to ask again",
    "leastSeconds": "while there is no eta: how long it will take at least, if that is known",
    "paused": "true while nobody is called because an operator paused the queue, or for 10 s after its data was lost; all places are kept",
    "ticketId": "the one-time ticket of somebody who is called, as a bare UUID",
    "ticket": "the same ticket, signed, for doors that check it before they redeem it",
    "server": "where the ticket holds a seat",
    "expiresInMs": "how long the ticket still holds its seat",
    "advice": "what to do when the wait is over",
}

_STANDING: Final = {
    "waiting": "how many stand in line",
    "away": "called while absent, their places are kept",
    "holds": "seats held by tickets that are not used yet",
    "sessions": "people inside",
    "admittedTotal": "called since the queue was made",
}

_OFFER: Final = {
    "capacity": "seats to be filled, at most 10,000 of a server; absent: maxCapacity",
    "maxCapacity": "the most that it takes: the room above capacity is for those who come back",
    "address": "where players connect; told with the ticket",
}

_INSTANCE: Final = {
    "instanceId": "its own name; made up and answered if left out",
    "hostname": "its host, for people and where no address is given",
    "publicIp": "address for clients outside",
    "privateIp": "address for clients inside; probes go there first",
    "port": "where it listens",
    "protocol": "what it speaks there, such as http",
    "weight": "its share of the calls, compared with the others; 0: none",
    "enabled": "false keeps it registered and unused",
    "ephemeral": "true: gone when its heartbeats stop; false: stays until it is removed",
    "healthy": "what it says of itself; a check may know better",
    "systemInfo": "facts of its machine, free in form",
    "metadata": "facts to choose it by, such as a version; filters read them",
    "metrics": "numbers of the moment, such as load; filters and balancers read them",
    "performance": "numbers of its power; filters and balancers read them",
    "ttlSeconds": "how long it lives without a heartbeat; null: as the registry is set",
    "check": "a health check that workers make",
}

FIELDS: Final[dict[str, dict[str, str]]] = {
    "PolicyChange": _POLICY,
    "QueueView": {
        **_POLICY,
        **_STANDING,
        "template": "the automatic queue that made this one; empty: an operator did",
        "version": "number of the policy, also in ETag",
        "generation": "goes up with each reset",
        "serving": "place of the last one called",
        "paused": "nobody is called",
        "draining": "nobody new is taken",
        "figures": "how things stand, in numbers",
    },
    "Figures": {
        **_STANDING,
        "live": "of those in line, how many were seen within graceSeconds (an estimate from samples)",
        "kept": "seats kept for those who were dropped",
        "servers": "live servers",
        "capacity": "seats in force; 10000000: no limit",
        "ratePerSecond": "people called a second in the last five seconds; 0 while nobody is called",
        "enteredTotal": "came in line since the queue was made; so with the other totals",
        "issuedTotal": "tickets made",
        "expiredTotal": "tickets that were not used in time",
        "redeemedTotal": "tickets used",
        "finishedTotal": "sessions that ended",
        "leftTotal": "left the line, or gave a ticket back",
        "abandonedTotal": "were away for too long",
        "movedTotal": "ticket holders moved from a dead server",
    },
    "Bypass": {
        "paths": "matched literally",
        "addresses": "of clients, such as 10.0.0.0/8, seen through trusted proxies only",
        "header": "name of a header whose value `POST …/bypass` has signed; empty: none",
    },
    "Auto": {
        "resource": "whose traffic counts; a pattern such as `product-*` makes a queue of its own for each resource that it matches",
        "eventType": "count only requests of this event type; empty: all",
        "threshold": "on when so many requests came within the window",
        "windowSeconds": "length of the window",
        "cooldownSeconds": "off when the traffic was below the threshold for so long and the line is empty",
        "maxQueues": "of a pattern: at most so many queues at once",
    },
    "Theme": {
        "color": "of buttons and progress, as #rrggbb; null: ours",
        "background": "as #rrggbb; null: light or dark as the visitor likes",
        "logo": "a path or an https address; null: none",
    },
    "AdmitRequest": {"count": "how many to call"},
    "EntryRequest": {
        "nickname": "shown to others inside",
        "userId": "an account's id, which needs a service token, `proof` or the place token; without, an anonymous waiter is made",
        "proof": "the site's signed word for the account: a JWS with sub, aud (the queue) and exp",
    },
    "Entry": {**_PERSON, "userId": "who entered; of an anonymous waiter it is their secret"},
    "Status": _PERSON,
    "Eta": {"seconds": "expected", "low": "hardly less", "high": "hardly more"},
    "Seat": {"address": "where to connect"},
    "Board": {
        "generation": "goes up with each reset",
        "serving": "place of the last one called",
        "waiting": "how many stand in line",
        "ratePerSecond": "people called a second in the last five seconds; 0 while nobody is called",
        "marks": "pairs [place, rank] along the line: between two of them lies one's own",
        "at": "when this was read",
    },
    "HeartbeatRequest": {**_OFFER, "sessions": "ids of all sessions inside; needed when `report` asks for them", "asOf": "the highest `seq` that this server has seen, 0 at first"},
    "Beat": {
        "drain": "an operator wants no one new here",
        "report": "send `sessions` with the next heartbeat",
        "seq": "the latest that was given to this server",
        "leaseMs": "without another heartbeat, its seats are gone after this",
    },
    "ServerView": {
        **_OFFER,
        "sessions": "people inside",
        "holds": "seats held by tickets that are not used yet",
        "draining": "takes nobody new",
        "reported": "its sessions are known, so its seats count",
    },
    "RedeemRequest": {"sessionId": "name of the new session", "instanceId": "the server that redeems; a ticket for another is refused and not spent"},
    "Redeemed": {"seq": "number of this redeem on its server, for `asOf`", "user": "who comes in", "traceparent": "trace of the entry, to go on with"},
    "User": {"nickname": "as given at the entry"},
    "RenewedSession": {"userId": "whose session it is", "expiresInMs": "how long it lasts unless it is renewed again"},
    "EndRequest": {"reason": "`left` frees the seat, `dropped` keeps it for `reentrySeconds`"},
    "CheckQuery": {
        "resource": "what is asked for; or give `path`",
        "eventType": "of the request, for queues that tell them apart",
        "path": "the path that was asked for, matched with the queues' `paths`",
    },
    "CheckAnswer": {
        "decision": "`pass` or `wait`; who must wait is in line already",
        "rank": "place in line, 1 for the first",
        "waitUrl": "the waiting page to send them to",
        "reason": "why they pass or wait",
    },
    "GateQuery": {"resource": "what this location is; without, the path is matched", "eventType": "of this location's requests"},
    "WaitQuery": {"return": "where to go when it is their turn", "lang": "en, ko, zh, ja or ar; else as the browser says", "plain": "1 for a page without scripts"},
    "PersonQuery": {"placeToken": "the same as X-Place-Token"},
    "RemoveServerQuery": {"drain": "true: take nobody new, honour tickets, keep sessions"},
    "HistoryQuery": {"minutes": "how many, the latest"},
    "Record": {**_INSTANCE, "lastHeartbeat": "accepted and ignored"},
    "Instance": {
        **_INSTANCE,
        "registration": "number of this life; a heartbeat with an older one is refused with `superseded`",
        "healthy": "in use if enabled and not draining",
        "draining": "an operator wants no new work there",
        "suspect": "its heartbeats stopped with those of many others: held for a while",
        "lastHeartbeat": "when it was last heard of",
        "override": "what an operator decided, over what it says of itself",
    },
    "Check": {
        "kind": "how it asks",
        "url": "of http and websocket",
        "port": "of tcp and grpc; else the record's",
        "intervalSeconds": "from one to the next",
        "timeoutSeconds": "no answer within this is a failure",
        "rise": "so many good ones make it healthy",
        "fall": "so many bad ones make it unhealthy",
        "removeAfterSeconds": "unhealthy for so long, it is removed; null: never",
    },
    "Heartbeat": {"metrics": "replaces what it was, as do the other objects", "record": "registers the instance whole if it is not known"},
    "PageQuery": {"limit": "at most so many, 1 to 1,000; else all", "page": "`nextPage` of the page before"},
    "DiscoverQuery": {"filter": "such as metadata.version==1.2; repeated, all must hold", "healthy": "only those that are, or are not", "check": "true: ask each candidate now, and leave out who does not answer", "limit": "at most so many, 1 to 1,000; else all", "page": "`nextPage` of the page before"},
    "Listing": {"nextPage": "the `page` of the next call; null on the last page", "cursor": "the `revision` of a watch of all groups that goes on from here"},
    "Services": {"nextPage": "the `page` of the next call; null on the last page"},
    "Values": {"nextPage": "the `page` of the next call; null on the last page"},
    "Upstream": {
        "baseUrl": "where it is; requests cannot leave it",
        "limits": "what the upstream allows; all hold at once",
        "userHeader": "the header that says whose request it is",
        "forwardUser": "pass that header on",
        "counter": "how the upstream counts; sliding-counter is lawful everywhere",
        "plans": "other limits, by name",
        "userPlans": "which user has which plan",
        "timeoutSeconds": "until the first byte of an answer",
        "deadlineSeconds": "how long a request may wait for its turn",
        "deliverySeconds": "how long after a lost connection a request may still arrive there",
        "connectSeconds": "until connected",
        "maxWaiting": "waiting requests of one user; more get 429 `line_full`",
        "maxConnections": "open at once, of one relay",
        "headers": "added to each request; {secret:NAME} comes from relay.secrets",
        "retry": "when a request is sent again",
        "verifyTls": "check its certificate",
    },
    "Limit": {
        "kind": "window: count in any seconds; bucket: burst, refilled by count in seconds; paced: one every everyMs; concurrent: count at once",
        "per": "each user's own, or shared by all users of the upstream",
        "count": "how many",
        "seconds": "in how long",
        "burst": "of a bucket: how many at once",
        "everyMs": "of a pace: from one to the next",
    },
    "Retry": {
        "attempts": "how often again",
        "statuses": "answers after which a safe request is sent again",
        "refused": "go back to the head of the line after a 429",
    },
    "PermitRequest": {"user": "whose permit", "permits": "how many it costs", "waitSeconds": "how long to wait; null: as the upstream says"},
    "AcquireRequest": {
        "ttlSeconds": "held so long unless renewed",
        "waitSeconds": "how long to wait in line for it; 0: only if it is free",
        "holder": "who asks; made up and answered if left out",
        "delaySeconds": "if its holder is lost, for how much longer nobody else gets it",
        "replicas": "how many replicas of the store must have it first",
    },
    "Acquired": {"holder": "shown to renew and release", "fence": "goes up with each holder; show it to what the lock guards", "ttlSeconds": "renew before this ends"},
    "HolderRequest": {"holder": "as acquire answered it"},
    "LockState": {
        "held": "somebody has it",
        "fence": "of the latest holder",
        "waiting": "how many wait for it",
        "ttlMs": "how long it is held unless renewed",
        "heldMs": "for how long it has been held",
    },
    "PublishRequest": {
        "content": "the value, as text",
        "contentType": "what it is written in, and checked as; null: as before",
        "reason": "why, for the history",
        "secret": "shown to service tokens only; null: as before",
    },
    "Published": {"version": "of this key, counted from 1"},
    "Value": {
        "version": "counted from 1 for each key",
        "content": "the value, as text",
        "contentType": "what it is written in",
        "updatedAt": "when it was published",
        "updatedBy": "whose token published it",
        "reason": "why, as they said",
        "secret": "masked for who may only read",
        "kind": "put, or removed",
        "diff": "in a history: what changed since the version before",
    },
    "GetQuery": {"version": "an older version; else the newest", "before": "with `/history`: only versions before this one; 0: all", "limit": "with `/history`: at most so many, 1 to 200"},
    "VersionsQuery": {"before": "only versions before this one; 0: all", "limit": "at most so many, 1 to 200"},
    "DeleteQuery": {"reason": "why, for the history"},
    "ConfigWatchQuery": {"key": "only this key; repeated, any of them"},
    "JobFilter": {"state": "only jobs in this state"},
    "RollbackRequest": {"version": "whose content is published again, as a new version", "reason": "why, for the history"},
    "TokenRequest": {"name": "of the token, for audits", "role": "admin, service or read", "namespace": "the only one where it works; null: all"},
    "NewToken": {"token": "the secret; shown only here"},
}  # fmt: skip

EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "PolicyChange": {"capacity": 100, "ratePerSecond": 5, "ticketTtlSeconds": 60, "maxLength": 5000, "message": "Doors are open. Your place is kept."},
    "HeartbeatRequest": {"queue": "main", "capacity": 50, "address": "wss://game-1.example/gameserver", "sessions": [], "asOf": 0},
    "Record": {"type": "game", "hostname": "game-1.example", "privateIp": "10.0.0.7", "port": 9000, "metadata": {"version": "1.2"}, "ttlSeconds": 30},
    "Upstream": {"baseUrl": "https://api.example", "limits": [{"kind": "window", "count": 10, "seconds": 60}], "counter": "sliding-counter"},
    "PublishRequest": {"content": "{\"price\": 39}", "contentType": "json", "reason": "season"},
}  # fmt: skip


def describe(name: str, schema: dict[str, Any]) -> None:
    """Add the descriptions of the fields to a struct's schema, and an example if there is one."""
    texts = FIELDS.get(name, {})
    for field, inner in schema.get("properties", {}).items():
        text = texts.get(field) or ANYWHERE.get(field)
        if text and "description" not in inner:
            inner["description"] = text
    if name in EXAMPLES:
        schema["examples"] = [EXAMPLES[name]]
