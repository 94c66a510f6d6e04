"""`headgate …`: noun then verb, data on stdout, the rest on stderr, an error in one sentence with its next step."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from headgate import __version__
from headgate.cli import output
from headgate.kit.problems import HeadgateError, StoreUnavailable

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
_AWAY = "Check that it runs and that the address is right; `headgate doctor` tells more."

app = App(
    name="headgate",
    help="Traffic control for stateful backends, on Valkey.",
    version=__version__,
    result_action="return_int_as_exit_code_else_zero",
    suppress_keyboard_interrupt=False,
    help_epilogue="Every command takes `--debug`, which shows the whole of an error.",
)
serve = App(name="serve", help="Run one process of Headgate; any number of each may run.")
lock = App(name="lock", help="Run commands under a lock, across machines; see and break locks.")
service = App(name="service", help="See and manage what is registered; register any program while it runs.")
relay = App(name="relay", help="Calls to somebody else's API, within its limits.")
upstream = App(name="upstream", help="Somebody else's API, and how much of it may be used.")
token = App(name="token", help="Make, list and revoke the tokens that callers show.")

# Modules are imported when their command is called: `headgate version` need not load a web server.
app.command("headgate.cli.up:up", name="up", help="Start everything here on an embedded Valkey.")
app.command(serve)
serve.command(
    "headgate.cli.serve:gateway", name="gateway", help="Run the HTTP APIs, the gate, the pages and the console."
)
serve.command(
    "headgate.cli.serve:worker", name="worker", help="Run promotion, sweeps, health checks and other due work."
)
serve.command("headgate.cli.relay_process:relay", name="relay", help="Run the forwarding proxy, and send jobs.")
serve.command("headgate.cli.arena:arena", name="arena", help="Run the reference game server, a chat room.")
app.command(lock)
lock.command("headgate.cli.lock:run", name="run", help="Run a command while holding a lock.")
lock.command("headgate.cli.lock:list_locks", name="list", help="Show the locks that are held or waited for.")
lock.command("headgate.cli.lock:show", name="show", help="Show one lock and its history.")
lock.command("headgate.cli.lock:break_lock", name="break", help="Take a lock away from its holder.")
app.command(service)
service.command("headgate.cli.service:list_services", name="list", help="Show what is registered, with counts.")
service.command("headgate.cli.service:show", name="show", help="Show the instances of a service.")
service.command("headgate.cli.service:watch", name="watch", help="Follow a service's changes.")
service.command("headgate.cli.service:remove", name="remove", help="Take an instance out.")
service.command("headgate.cli.service:drain", name="drain", help="Send no more traffic to an instance.")
service.command("headgate.cli.service:evict", name="evict", help="Take an instance out and keep it out for a time.")
service.command("headgate.cli.service:register", name="register", help="Run a program, registered while it lives.")
app.command(token)
token.command("headgate.cli.token:list_tokens", name="list", help="Show all tokens, without the tokens themselves.")
token.command("headgate.cli.token:create", name="create", help="Make a token and print it, once.")
token.command("headgate.cli.token:revoke", name="revoke", help="Make a token worthless.")
app.command(relay)
relay.command(upstream)
upstream.command("headgate.cli.relay:list_upstreams", name="list", help="Show all upstreams and their limits.")
upstream.command("headgate.cli.relay:set_upstream", name="set", help="Add or change an upstream.")
upstream.command("headgate.cli.relay:remove_upstream", name="remove", help="Take an upstream out of service.")
relay.command("headgate.cli.relay:status", name="status", help="Show who waits, what is in flight and what cools.")
relay.command("headgate.cli.relay:watch", name="watch", help="Show the same again and again.")
relay.command("headgate.cli.relay:prove", name="prove", help="Flood live relays and count what arrives.")
app.command("headgate.cli.chat:chat", name="chat", help="Stand in line, enter the arena with a ticket, and talk.")
app.command(
    "headgate.cli.load:load", name="load", help="Send a simulated crowd through a queue and draw what happened."
)
app.command("headgate.cli.doctor:doctor", name="doctor", help="Check the store, and say what to do about each finding.")
app.command("headgate.cli.settings:settings", name="settings", help="Show every setting in force and its origin.")
app.command("headgate.cli.version:version", name="version", help="Say which version this is.")


def main() -> None:
    """Run the command line of this process and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code."""
    arguments, debug = _without_debug(arguments)
    try:
        return int(app(arguments, exit_on_error=False, print_error=False) or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough; what Python still wants to flush has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CycloptsError as error:
        output.complain(" ".join(str(error).split()), "`headgate --help` shows what there is.")
        return MISUSED
    except HeadgateError as error:
        if debug:
            traceback.print_exc()
        output.complain(error.detail, _AWAY if isinstance(error, StoreUnavailable) else "")
        return FAILED
    except Exception as error:  # noqa: BLE001  # the last stop: people get a sentence, --debug the traceback
        if debug:
            traceback.print_exc()
            return FAILED
        output.complain(
            f"something went wrong that should not have: {type(error).__name__}: {error}",
            "Run it again with --debug and report what that shows.",
        )
        return FAILED


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Take `--debug` out, wherever it stands before `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours = [argument for argument in arguments[:end] if argument != "--debug"]
    return [*ours, *arguments[end:]], len(ours) < end
