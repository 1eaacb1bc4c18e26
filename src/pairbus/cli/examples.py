"""An example or two for each command, shown by its --help. A test reads them: every option in them exists."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "pairbus demo                                  the whole story, in two minutes",
        "pairbus serve contoso --data ./contoso        a Service Bus on this machine",
        "pairbus doctor --primary env:CONTOSO          what is wrong, and what to do",
    ),
    "serve": (
        "pairbus serve contoso --data ./contoso",
        "pairbus serve contoso standby --data ./namespaces --port 5672",
        "pairbus serve --data ./namespaces --config entities.json --ready-file ready.json",
    ),
    "fault": (
        "pairbus fault contoso                         which faults are on",
        "pairbus fault contoso --entity orders --mode hang --for 30s",
        "pairbus fault contoso --mode error --condition amqp:internal-error",
        "pairbus fault contoso --clear",
    ),
    "doctor": (
        "pairbus doctor",
        "pairbus doctor --primary env:CONTOSO --secondary env:STANDBY --primary-name contoso",
        "pairbus --config pairbus.toml doctor --json",
    ),
    "drill": (
        "pairbus drill examples/drills/primary-dies.toml",
        "pairbus drill scenario.toml --json --quiet > drill.json",
        "pairbus drill scenario.toml --real --primary env:CONTOSO --secondary env:STANDBY",
    ),
    "syphon": (
        "pairbus syphon --primary env:CONTOSO --secondary env:STANDBY",
        "pairbus syphon --primary contoso --secondary standby --primary-name contoso --once",
        "pairbus syphon --control /run/pairbus/syphon.sock --state",
    ),
    "backlog": ("pairbus backlog list --primary-name contoso --secondary env:STANDBY",),
    "backlog list": (
        "pairbus backlog list --primary-name contoso --secondary env:STANDBY",
        "pairbus backlog list --primary-name contoso --secondary standby --json",
    ),
    "backlog peek": ("pairbus backlog peek --primary-name contoso --secondary env:STANDBY --queue 3 --count 5",),
    "backlog prune": ("pairbus backlog prune --primary-name contoso --secondary env:STANDBY --queues 0-4 --dry-run",),
    "deadletters": ("pairbus deadletters list --primary-name contoso --secondary env:STANDBY",),
    "deadletters list": ("pairbus deadletters list --primary-name contoso --secondary env:STANDBY",),
    "deadletters resubmit": (
        "pairbus deadletters resubmit --primary-name contoso --secondary env:STANDBY --dry-run",
        "pairbus deadletters resubmit --primary-name contoso --secondary env:STANDBY --message-id order-7",
    ),
    "ledger": ("pairbus ledger report ./ledger",),
    "ledger build": ("pairbus ledger build ./ledger --tables ./tables",),
    "ledger report": (
        "pairbus ledger report ./ledger --from 2026-03-01 --to 2026-03-31 --output march.html",
        "pairbus ledger report ./ledger --look-into contoso --secondary contoso-standby",
    ),
    "cost": ("pairbus cost estimate --clients 40 --entities 5 --explain",),
    "cost estimate": (
        "pairbus cost estimate --clients 40 --entities 5 --explain",
        "pairbus cost estimate --outage-hours 2 --rate 50 --message-bytes 2048",
    ),
    "cost forecast": ("pairbus cost forecast fleet.toml",),
    "simulate": ("pairbus simulate fleet.toml --runs 1000",),
    "dashboard": (
        "pairbus dashboard --state-dir /run/user/1000/pairbus-state",
        "pairbus dashboard --allow-control --secondary env:STANDBY --ledger ./ledger",
    ),
    "demo": ("pairbus demo",),
    "completion": (
        "pairbus completion bash > ~/.local/share/bash-completion/completions/pairbus",
        "pairbus completion zsh > ~/.zfunc/_pairbus",
        "pairbus completion fish > ~/.config/fish/completions/pairbus.fish",
    ),
}
