"""Scenarios: the examples can be read, and what is wrong is said before anything starts."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from msgspec import structs

from pairbus.cli.__main__ import command_tree, run
from pairbus.drill.scenario import (
    METRICS,
    FaultAction,
    KillAction,
    Pairing,
    PositiveDuration,
    SendAction,
    StepAction,
    parse_scenario,
    read_scenario,
)
from pairbus.embedded.faults import MODES
from pairbus.pairing.options import OPTION_NAMES
from pairbus.toml import TomlError

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "drills").glob("*.toml"))
SEND = 'do = "send"\nentity = "orders"\ncount = 1'
GOOD = """
name = "x"
expect = ["lost == 0"]
[pairing]
failover-interval = "0s"
[[entities]]
queue = "orders"
[[steps]]
do = "send"
entity = "orders"
count = 1
"""


def parsed(text: str) -> Any:
    return parse_scenario(tomllib.loads(text))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_can_be_read(path: Path) -> None:
    assert read_scenario(path).steps


def test_a_scenario_is_a_value() -> None:
    scenario = parsed(GOOD + '[[steps]]\ndo = "kill"\n[[steps]]\ndo = "fault"\nmode = "slow"\ndelay = "200ms"\n')
    assert [step.action for step in scenario.steps] == [
        SendAction("orders", 1),
        KillAction("primary"),
        FaultAction("slow", delay=PositiveDuration(0.2)),
    ]
    assert scenario.pairing.options == {"failover_interval": 0.0}
    assert scenario.only_for_embedded == ["kill", "fault mode slow, delay 200ms"]


@pytest.mark.parametrize("mode", MODES)
def test_every_fault_of_the_server_can_be_scripted(mode: str) -> None:
    extra = {"error": 'condition = "amqp:internal-error"', "throttle": "rate = 5", "slow": 'delay = "1s"'}.get(mode, "")
    step = parsed(GOOD + f'[[steps]]\ndo = "fault"\nmode = "{mode}"\n{extra}\n').steps[-1]
    assert step.action.mode == mode


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("name", "nmae", "'nmae' is unknown: did you mean 'name'?"),
        ('name = "x"', "", "name is missing: expected a text in quotes."),
        ('expect = ["lost == 0"]', "", 'expect is missing: expected a list of texts, such as ["lost == 0"].'),
        ('expect = ["lost == 0"]', "expect = []", "expect has 0 entries: expected 1 to 100."),
        ("lost == 0", "lsot == 0", "'lsot == 0': 'lsot' is unknown: did you mean 'lost'?"),
        ("lost == 0", "lost == 0 and refused == 0", "cannot use 'and': write one comparison per line"),
        (
            "failover-interval",
            "failover-intervall",
            "pairing: 'failover-intervall' is unknown: did you mean 'f",
        ),
        ('"0s"', "0", "pairing: failover-interval is 0: expected a duration in quotes"),
        ('"0s"', '"-1s"', "pairing: failover-interval is '-1s': expected a duration in quotes, such as '500ms', '30s'"),
        ('queue = "orders"', 'que = "orders"', "entities 1: 'que' is unknown: did you mean 'queue'?"),
        ('queue = "orders"', 'queue = "orders"\ntopic = "x"', "entities 1: needs either queue or topic"),
        ('queue = "orders"', 'queue = "../x"', "entities 1: '../x' is not a name"),
        ('queue = "orders"', 'queue = "orders"\n[[entities]]\nqueue = "orders"', "An entity is described twice"),
        ('queue = "orders"', 'topic = "orders"\nsessions = true', "entities 1: a topic has no sessions"),
        ('do = "send"', 'do = "sned"', "steps 1: do 'sned' is unknown: did you mean 'send'?"),
        ('do = "send"', "", "steps 1: do is missing: expected one of "),
        (
            'entity = "orders"',
            'entity = "ordres"',
            "steps 1: 'ordres' is not an entity of this drill: did you mean 'o",
        ),
        ('entity = "orders"', "", "steps 1: entity is missing: expected a text in quotes."),
        ("count = 1", "", "steps 1: count is missing: expected a whole number from 1 to 1,000,000."),
        ("count = 1", "count = 0", "steps 1: count is 0: expected a whole number from 1 to 1,000,000."),
        ("count = 1", "count = true", "steps 1: count is true: expected a whole number"),
        ("count = 1", "count = 1\nsenders = 1000", "steps 1: senders is 1000: expected a whole number from 1 to 64."),
        (SEND, 'do = "start"\nentity = "orders"', "steps 1: rate is missing: expected a number from 0.01 to 10,000."),
        (SEND, 'do = "wait"\nuntil = "lost == 0"', "steps 1: 'lost == 0': lost is known only at the end"),
        (SEND, 'do = "wait"\nuntil = "accepted == 0 or refused == 1"', "steps 1: 'accepted == 0 or refused == 1': an "),
        (SEND, 'do = "wait"\nuntil = []', "steps 1: until has 0 entries: expected 1 to 100."),
        (SEND, 'do = "wait"\nuntil = 3', "steps 1: until is 3: expected a text in quotes or a list of texts"),
        (SEND, 'do = "pause"\nfor = "0s"', "steps 1: for is '0s': expected a duration in quotes above 0"),
        (
            SEND,
            'do = "syphon"\nwithin = "25h"',
            "steps 1: within is '25h': expected a duration in quotes above 0, such ",
        ),
        (SEND, 'do = "fault"\nmode = "error"', "steps 1: mode error needs condition"),
        (SEND, 'do = "fault"\nmode = "hang"\nrate = 3', "steps 1: mode throttle needs rate, and no other mode may"),
        (SEND, 'do = "fault"\nmode = "disable"', "steps 1: mode disable needs an entity."),
        (SEND, 'do = "kill"\nnamespace = "x"', "namespace 'x' is unknown: known are primary, secondary."),
        ("[[steps]]", "[steps]", "expected tables: write [[steps]] above each of them."),
        ('entity = "orders"', 'entity = ["orders"]', "steps 1: entity is ['orders']: expected a text in quotes."),
        ('entity = "orders"', "entity = {}", "steps 1: entity is {}: expected a text in quotes."),
    ],
)
def test_what_is_wrong_is_said_first(old: str, new: str, sentence: str) -> None:
    assert old in GOOD
    with pytest.raises(TomlError) as said:
        parsed(GOOD.replace(old, new, 1))
    assert sentence in str(said.value)


def test_everything_has_a_limit() -> None:
    with pytest.raises(TomlError, match="steps has 202 entries: expected 1 to 200"):
        parsed(GOOD + '[[steps]]\ndo = "stop"\n' * 201)


def test_a_scenario_that_cannot_be_read_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.toml"
    assert run(["drill", str(path)]) == 2
    assert f"Cannot read the scenario {path}: No such file or directory." in capsys.readouterr().err
    path.write_text("name = ")
    assert run(["drill", str(path)]) == 2
    assert f"{path} is not TOML" in capsys.readouterr().err
    for count in ("1" * 5000, f"0x{'f' * 5000}"):
        path.write_text(GOOD.replace("count = 1", f"count = {count}"))
        assert run(["drill", str(path)]) == 2
        assert f"{path} is not TOML: it has a whole number of more than 64 bits." in capsys.readouterr().err
    path.write_text(GOOD + '[[steps]]\ndo = "kill"\n')
    assert run(["drill", str(path), "--real", "--primary", "a", "--secondary", "b"]) == 2
    assert "--real cannot do 'kill': on real namespaces the only fault is mode disable." in capsys.readouterr().err
    assert run(["drill", str(path), "--primary", "a"]) == 2
    assert "--primary and --secondary work only with --real: add it, or leave them out." in capsys.readouterr().err


def test_the_page_describes_every_key_step_and_name() -> None:
    page = (ROOT / "docs" / "drill.md").read_text(encoding="utf-8")
    for name, metric in METRICS.items():
        assert f"| `{name}` | {metric.kind.value}{'' if metric.live else ', *at the end*'} | {metric.meaning}" in page
    for action in StepAction.__subclasses__():
        do = action.__struct_config__.tag
        (row,) = [line for line in page.splitlines() if line.startswith("| ") and f"`{do}`" in line.split("|")[1]]
        assert all(f"`{field.encode_name}`" in row for field in structs.fields(action)), row
    for key in [field.encode_name for field in structs.fields(Pairing)]:
        assert f"`{key}`" in page or f"`{key} = " in page
        assert key == "sdk-retries" or key.replace("-", "_") in OPTION_NAMES
    for example in EXAMPLES:
        assert example.stem in page or "both-down" in example.stem


def test_the_workflow_uses_commands_and_extras_that_exist() -> None:
    text = (ROOT / "examples" / "ci" / "github-actions.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert set(jobs) == {"local", "real"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in re.findall(r"pip install 'pairbus\[([\w,]+)\]'", text):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])
    tree = command_tree()
    typed = re.findall(r"^\s*(?:- run:|run:)?\s*pairbus (.+?)(?: > .*)?$", text, re.MULTILINE)
    assert len(typed) == 4
    for line in typed:
        name, *words = shlex.split(line.partition(" > ")[0])
        command = tree.commands[name]
        context = command.context_class(command, info_name=name)
        command.make_parser(context).parse_args(args=words)


def test_the_scenario_of_the_page_can_be_read() -> None:
    page = (ROOT / "docs" / "drill.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(parsed(text).steps) == 7
