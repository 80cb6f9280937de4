"""Every command: where it lives, and one line about it. The help is printed from this table alone.

Place in the flow: main ─name─▶ **table** ─module─▶ the command. Invariant: no command is imported before it is called,
so that `gpuyard --help` answers at once however many there are.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Entry(NamedTuple):
    """A command, by the name of its module and of its object there."""

    target: str
    """module:attribute, below gpuyard.cli."""
    help: str
    aliases: tuple[str, ...] = ()


SECTIONS: Final[dict[str, dict[str, Entry]]] = {
    "Jobs": {
        "submit": Entry("submit:submit", "Submit a job: a file, or a command with flags."),
        "run": Entry("run:run", "Submit a job, follow it, and end with its exit code."),
        "ls": Entry("ls:ls", "List jobs, why they wait and when they are thought to start.", ("ps", "queue")),
        "get": Entry("get:get", "Show one job."),
        "describe": Entry("get:describe", "Show one job with its tasks and everything that happened to it."),
        "logs": Entry("logs:logs", "Show what a job has written; -f follows."),
        "wait": Entry("wait:wait", "Wait until jobs are over, and end with their exit code."),
        "cancel": Entry("steer:cancel", "End jobs for good; politely where they run."),
        "hold": Entry("steer:hold", "Keep jobs from starting."),
        "release": Entry("steer:release", "Take the hold off."),
        "suspend": Entry("steer:suspend", "Stop jobs politely and keep them from starting."),
        "resume": Entry("steer:resume", "Let suspended jobs wait for their turn again."),
        "requeue": Entry("steer:requeue", "Stop jobs politely and let them wait for their turn again."),
        "scale": Entry("steer:scale", "Give an elastic job other bounds for its tasks."),
    },
    "Jobs that come again": {
        "schedule": Entry("schedule:schedule", "Recurring jobs: set, ls, describe, pause, resume, run, rm."),
    },
    "Why, and what if": {
        "explain": Entry("explain:explain", "Say why a job waits or runs, and the cheapest ways out."),
        "plan": Entry("plan:plan", "Say what would happen to a job, or in the next cycle of a cluster file."),
        "what-if": Entry("what_if:what_if", "Say who would start, stop, move and wait if something changed."),
    },
    "Teams and people": {
        "team": Entry("team:team", "Teams: ls, tree, set, validate, members."),
        "user": Entry("user:user", "Users and their roles: ls, set, remove."),
        "token": Entry("token:token", "Tokens: create, ls, revoke."),
        "usage": Entry("usage:usage", "GPU-hours: owed, borrowed, lent, wasted; by team, user, job, day."),
    },
    "Machines": {
        "node": Entry("node:node", "Machines: ls, describe, drain, resume, label, token, declare-lost, remove."),
        "gpu": Entry("gpu:gpu", "GPUs: a map of who holds which part."),
        "status": Entry("status:status", "The cluster in short."),
        "top": Entry("top:top", "The cluster, live."),
        "doctor": Entry("doctor:doctor", "Check the server, its machines and this command line."),
    },
    "Data jobs of VDK": {
        "execute": Entry("execute:execute", "Start data jobs and look at their executions: --start, --list, --logs."),
    },
    "Somebody else's machines": {
        "pool": Entry("pool:pool", "Places for jobs of another platform: provision, quote, ls, plan, machine, budget."),
    },
    "What happened": {
        "events": Entry("audit:events", "What happened to jobs; -w watches."),
        "audit": Entry("audit:audit", "Every change and every decision, and who made it."),
    },
    "Signing in": {
        "login": Entry("login:login", "Keep a token for a server."),
        "logout": Entry("login:logout", "Forget the token of a server."),
        "whoami": Entry("login:whoami", "Whom the token speaks for, and what it may do."),
        "config": Entry("config:config", "Contexts and settings: view, use-context, set-context."),
        "completion": Entry("completion:completion", "Completion for bash, zsh and fish."),
    },
    "The server": {
        "up": Entry("up:up", "Start everything on this machine: manager, database, agent."),
        "down": Entry("up:down", "Stop what `up` has started; jobs keep running unless told."),
        "serve": Entry("up:serve", "Run the manager in this terminal."),
        "agent": Entry("agent:agent", "Run this machine's part."),
        "backup": Entry("backup:backup", "Write the whole state into one file."),
        "restore": Entry("backup:restore", "Read it back."),
        "store": Entry("store:store", "The database: inspect, verify, quarantine, release, accept."),
    },
    "Without a server": {
        "demo": Entry("demo:demo", "The core at work on an example."),
        "scenario": Entry("scenario:scenario", "Rules of scheduling, written as examples and judged."),
        "schema": Entry("schema:schema", "Print the JSON Schema of a kind of file."),
        "fake": Entry("fake:fake", "GPUs that are not there, for programs that believe in them."),
        "kube": Entry("kube:kube", "Kubernetes: scheduler, install, questions; a testbed of real parts."),
    },
}

COMMANDS: Final[dict[str, Entry]] = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
ALIASES: Final[dict[str, str]] = {alias: name for name, entry in COMMANDS.items() for alias in entry.aliases}
