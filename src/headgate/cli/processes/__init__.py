"""The processes of Headgate: gateway, worker, relay and arena, and how their parts are put together."""
