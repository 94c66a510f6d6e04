"""`headgate …`: noun then verb, data on stdout, the rest on stderr, an error in one sentence with its next step."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from headgate import __version__
from headgate.cli import output, usage_errors
from headgate.cli.error_advice import next_step
from headgate.kit.problems import HeadgateError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

app = App(
    name="headgate",
    help="Traffic control for stateful backends, on Valkey.",
    version=__version__,
    result_action="return_int_as_exit_code_else_zero",
    suppress_keyboard_interrupt=False,
    help_epilogue="Every command takes `--debug`, which shows the whole of an error.",
)
serve = App(name="serve", help="Run one process of Headgate; any number of each may run.")
queue = App(name="queue", help="Make queues, change how they admit, and watch them.")
server = App(name="server", help="See who offers seats in a queue.")
lock = App(name="lock", help="Run commands under a lock, across machines; see and break locks.")
config = App(name="config", help="Read, publish, compare and roll back values that change live.")
service = App(name="service", help="See and manage what is registered; register any program while it runs.")
relay = App(name="relay", help="Calls to somebody else's API, within its limits.")
upstream = App(name="upstream", help="Somebody else's API, and how much of it may be used.")
token = App(name="token", help="Make, list and revoke the tokens that callers show.")
store = App(name="store", help="The store that Headgate keeps everything in.")
keys = App(name="keys", help="The keys that sign tickets, place tokens and passes.")

# Modules are imported when their command is called: `headgate version` need not load a web server.
app.command("headgate.cli.trial.up:up", name="up", help="Start everything here on an embedded Valkey.")
app.command(serve)
serve.command(
    "headgate.cli.processes.gateway:gateway",
    name="gateway",
    help="Run the HTTP APIs, the gate, the pages and the console.",
)
serve.command(
    "headgate.cli.processes.worker:worker",
    name="worker",
    help="Run promotion, sweeps, health checks and other due work.",
)
serve.command("headgate.cli.processes.relay:relay", name="relay", help="Run the forwarding proxy, and send jobs.")
serve.command("headgate.cli.trial.shop:shop", name="shop", help="Run the demonstration shop.", show=False)
serve.command("headgate.cli.processes.arena:arena", name="arena", help="Run the reference game server, a chat room.")
app.command(queue)
queue.command("headgate.cli.commands.queue:list_queues", name="list", help="Show all queues and how they stand.")
queue.command("headgate.cli.commands.queue:show", name="show", help="Show a queue's policy and figures.")
queue.command("headgate.cli.commands.queue:create", name="create", help="Make a queue.")
queue.command("headgate.cli.commands.queue:set_policy", name="set", help="Change a queue while it runs.")
queue.command("headgate.cli.commands.queue:pause", name="pause", help="Stop calling people.")
queue.command("headgate.cli.commands.queue:resume", name="resume", help="End a pause or a drain.")
queue.command("headgate.cli.commands.queue:admit", name="admit", help="Call so many people now.")
queue.command("headgate.cli.commands.queue:drain", name="drain", help="Take nobody new; those in line are served.")
queue.command(
    "headgate.cli.commands.queue:reset", name="reset", help="Begin anew: everybody in line loses their place."
)
queue.command("headgate.cli.commands.queue:delete", name="delete", help="Delete a queue and everything in it.")
queue.command("headgate.cli.commands.queue:audit", name="audit", help="Show who changed what.")
queue.command("headgate.cli.commands.queue:history", name="history", help="Show what happened by the minute.")
queue.command("headgate.cli.commands.queue:watch", name="watch", help="Follow a queue, once a second.")
app.command(server)
server.command("headgate.cli.commands.server:list_servers", name="list", help="Show every live server of a queue.")
app.command(lock)
lock.command("headgate.cli.commands.lock:run", name="run", help="Run a command while holding a lock.")
lock.command("headgate.cli.commands.lock:list_locks", name="list", help="Show the locks that are held or waited for.")
lock.command("headgate.cli.commands.lock:show", name="show", help="Show one lock and its history.")
lock.command("headgate.cli.commands.lock:break_lock", name="break", help="Take a lock away from its holder.")
app.command(config)
config.command("headgate.cli.commands.config:get", name="get", help="Print a value, or the names of all.")
config.command("headgate.cli.commands.config:set_value", name="set", help="Publish a new version of a value.")
config.command("headgate.cli.commands.config:edit", name="edit", help="Change a value in your editor.")
config.command("headgate.cli.commands.config:history", name="history", help="Show a value's versions.")
config.command("headgate.cli.commands.config:diff", name="diff", help="Show what differs between two versions.")
config.command(
    "headgate.cli.commands.config:roll_back", name="rollback", help="Publish an old version's content again."
)
config.command("headgate.cli.commands.config:watch", name="watch", help="Follow a namespace's changes.")
config.command("headgate.cli.commands.config:export", name="export", help="Write all values into a directory of files.")
config.command(
    "headgate.cli.commands.config:import_files", name="import", help="Publish what a directory of files says."
)
app.command(service)
service.command(
    "headgate.cli.commands.service:list_services", name="list", help="Show what is registered, with counts."
)
service.command("headgate.cli.commands.service:show", name="show", help="Show the instances of a service.")
service.command("headgate.cli.commands.service:watch", name="watch", help="Follow a service's changes.")
service.command("headgate.cli.commands.service:remove", name="remove", help="Take an instance out.")
service.command("headgate.cli.commands.service:drain", name="drain", help="Send no more traffic to an instance.")
service.command(
    "headgate.cli.commands.service:evict", name="evict", help="Take an instance out and keep it out for a time."
)
service.command(
    "headgate.cli.commands.service:register", name="register", help="Run a program, registered while it lives."
)
app.command(token)
token.command(
    "headgate.cli.commands.token:list_tokens", name="list", help="Show all tokens, without the tokens themselves."
)
token.command("headgate.cli.commands.token:create", name="create", help="Make a token and print it, once.")
token.command("headgate.cli.commands.token:revoke", name="revoke", help="Make a token worthless.")
app.command(keys)
keys.command(
    "headgate.cli.commands.keys:create", name="create", help="Print a new signing key, for HEADGATE_SIGNING_KEYS."
)
app.command(store)
store.command(
    "headgate.cli.commands.store:url", name="url", help="Print the store's URL with its password, for programs."
)
app.command(relay)
relay.command(upstream)
upstream.command("headgate.cli.commands.relay:list_upstreams", name="list", help="Show all upstreams and their limits.")
upstream.command("headgate.cli.commands.relay:set_upstream", name="set", help="Add or change an upstream.")
upstream.command("headgate.cli.commands.relay:remove_upstream", name="remove", help="Take an upstream out of service.")
relay.command(
    "headgate.cli.commands.relay:status",
    name="status",
    help="Show who waits, what is in flight, and how many permits still count in their window.",
)
relay.command("headgate.cli.commands.relay:watch", name="watch", help="Show the status of upstreams once a second.")
relay.command("headgate.cli.commands.relay:prove", name="prove", help="Flood live relays and count what arrives.")
app.command(
    "headgate.cli.commands.chat:chat", name="chat", help="Stand in line, enter the arena with a ticket, and talk."
)
app.command(
    "headgate.cli.trial.load:load", name="load", help="Send a simulated crowd through a queue and draw what happened."
)
app.command(
    "headgate.cli.commands.top:top", name="top", help="Watch queues, servers, services, upstreams and locks live."
)
app.command(
    "headgate.cli.commands.doctor.command:doctor",
    name="doctor",
    help="Check the store or a gateway, and say what to do about each finding.",
)
app.command(
    "headgate.cli.commands.settings:settings", name="settings", help="Show every setting in force and its origin."
)
app.command("headgate.cli.commands.version:version", name="version", help="Say which version this is.")


def main() -> None:
    """Run the command line of this process and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    arguments, debug = _without_debug(arguments)
    try:
        return int(app(arguments, exit_on_error=False, print_error=False) or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it; Python's last flush must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CycloptsError as error:
        named = " ".join(("headgate", *(error.command_chain or ()), "--help"))
        output.complain(usage_errors.explain(error), f"`{named}` shows what there is.")
        return MISUSED
    except HeadgateError as error:
        if debug:
            traceback.print_exc()
        output.complain(error.detail, next_step(error))
        return FAILED
    except Exception as error:  # noqa: BLE001  # the outermost handler: one sentence, or the traceback with --debug
        if debug:
            traceback.print_exc()
            return FAILED
        output.complain(
            f"something went wrong that should not have: {type(error).__name__}: {error}",
            "Run it again with --debug and report what that shows.",
        )
        return FAILED


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Remove `--debug` anywhere before `--`; return whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours = [argument for argument in arguments[:end] if argument != "--debug"]
    return [*ours, *arguments[end:]], len(ours) < end
