"""Two implementations of each part of the client: `Store…Backend` talks to the store, `Http…Backend` to a gateway.

A part (`Queue`, `Registry`, `Config`, `Relay`) has one implementation, on top of a Protocol `…Backend` that both of its backends
fulfil; `Headgate` chooses between the two. `hg.queues` adds nothing to its backend and is the backend itself. Of the locks,
`headgate.locks.LockSource` is what both backends share, and `headgate.locks.Locks` is the one for the store.
"""
