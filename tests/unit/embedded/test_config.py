"""The configuration file: what it describes, and complaints that name the line and the key."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.embedded.config import ConfigError, LocatedError, parse, parse_config, read_config
from pairbus.embedded.entities.descriptions import (
    CorrelationFilter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)

WHOLE = """{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": true,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "topic.1",
              "LockDuration": "PT30S",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": true,
              "RequiresSession": false
            }
          },
          { "Name": "plain" }
        ],
        "Topics": [
          {
            "Name": "topic.1",
            "Properties": { "DefaultMessageTimeToLive": "PT2H" },
            "Subscriptions": [
              {
                "Name": "subscription.1",
                "Properties": { "MaxDeliveryCount": 5, "RequiresSession": true },
                "Rules": [
                  {
                    "Name": "by-properties",
                    "Properties": {
                      "FilterType": "Correlation",
                      "CorrelationFilter": {
                        "ContentType": "application/text",
                        "Label": "subject1",
                        "Properties": { "prop1": "value1", "urgent": true, "level": 3 }
                      }
                    }
                  },
                  {
                    "Name": "by-sql",
                    "Properties": {
                      "FilterType": "Sql",
                      "SqlFilter": { "SqlExpression": "sys.MessageId = '1'" },
                      "Action": { "SqlExpression": "SET sys.To = 'Entity'" }
                    }
                  },
                  { "Name": "all" }
                ]
              }
            ]
          }
        ]
      },
      { "Name": "second" }
    ],
    "Logging": { "Type": "File" }
  }
}
"""


def test_everything_in_the_file_is_understood() -> None:
    config = parse_config(WHOLE)
    first = config.namespace("sbemulatorns")
    assert first.queues == (
        QueueDescription(
            "queue.1",
            dead_lettering_on_message_expiration=True,
            default_message_time_to_live_ms=3_600_000,
            duplicate_detection_history_time_window_ms=20_000,
            forward_to="topic.1",
            lock_duration_ms=30_000,
            max_delivery_count=3,
            requires_duplicate_detection=True,
        ),
        QueueDescription("plain"),
    )
    assert first.topics == (TopicDescription("topic.1", default_message_time_to_live_ms=7_200_000),)
    (subscription,) = first.subscriptions
    assert subscription.description == SubscriptionDescription(
        "topic.1", "subscription.1", max_delivery_count=5, requires_session=True
    )
    assert subscription.rules == (
        RuleDescription(
            "by-properties",
            CorrelationFilter(
                content_type="application/text",
                label="subject1",
                properties={"prop1": "value1", "urgent": True, "level": 3},
            ),
        ),
        RuleDescription("by-sql", SqlFilter("sys.MessageId = '1'"), SqlAction("SET sys.To = 'Entity'")),
        RuleDescription("all", TrueFilter()),
    )


def test_several_namespaces_are_found_by_name_without_regard_to_case() -> None:
    config = parse_config(WHOLE)
    assert config.namespace("SECOND").name == "second"
    with pytest.raises(ConfigError, match=r"no namespace 'third'\. It describes sbemulatorns, second"):
        config.namespace("third")


def test_the_only_namespace_serves_any_name() -> None:
    config = parse_config('{"UserConfig":{"Namespaces":[{"Name":"one"}]}}')
    assert config.namespace("contoso").name == "one"


def line_of(text: str) -> int:
    """The line of the whole configuration that holds `text`."""
    (number,) = [number for number, line in enumerate(WHOLE.splitlines(), 1) if text in line]
    return number


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"LockDuration": "PT30S"', '"LockDuration": "PT10M"', "LockDuration is PT10M"),
        ('"LockDuration": "PT30S"', '"LockDuration": "soon"', "LockDuration: 'soon' is not a duration"),
        ('"LockDuration": "PT30S"', '"LockDuration": 30', "LockDuration must be a duration"),
        ('"LockDuration": "PT30S"', '"LockDurations": "PT30S"', "did you mean LockDuration?"),
        ('"MaxDeliveryCount": 3', '"MaxDeliveryCount": "3"', "MaxDeliveryCount must be a whole number"),
        ('"MaxDeliveryCount": 3', '"MaxDeliveryCount": 0', "MaxDeliveryCount is 0"),
        ('"MaxDeliveryCount": 3', '"LockDuration": 3', "'LockDuration' appears twice"),
        ('"RequiresDuplicateDetection": true', '"RequiresDuplicateDetection": 1', "must be true or false"),
        ('"Name": "queue.1"', '"Name": "queue 1"', "not allowed"),
        ('"Name": "queue.1"', '"Name": ""', "Name of a queue must be text"),
        ('"Name": "subscription.1"', '"Name": "a/b"', "subscription name 'a/b' is not allowed"),
        ('"FilterType": "Sql"', '"FilterType": "Regex"', "FilterType is 'Regex'"),
        ('"FilterType": "Sql"', '"FilterType": "Correlation"', "the key CorrelationFilter is missing"),
        ('"Logging": { "Type": "File" }', '"Loging": {}', "did you mean Logging?"),
        ('"Label": "subject1"', '"Label": 7', "Label must be text"),
    ],
)
def test_a_complaint_names_the_line_and_the_key(old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError) as complaint:
        parse_config(WHOLE.replace(old, new, 1), "Config.json")
    assert str(complaint.value).startswith(f"Config.json, line {line_of(old)}: ")
    assert words in str(complaint.value)
    assert str(complaint.value).endswith(("?", ".")) and not str(complaint.value).endswith(("?.", ".."))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: expecting value"),
        ("{\n'a': 1}", "line 2: expected a key in double quotes"),
        ('{"UserConfig": {}}', "describes no namespace"),
        ('{"UserConfig": []}', "UserConfig must be an object"),
        ("{}", "the key UserConfig is missing"),
        ('{"UserConfig": {"Namespaces": {}}}', "Namespaces must be a list"),
        ('{"UserConfig": {"Namespaces": [{}]}}', "the key Name is missing"),
        ('{"UserConfig": {}} x', "expected the end"),
        ('{"UserConfig": NaN}', "NaN is not a JSON value"),
        ("[" * 100, "nested deeper"),
        (
            '{"UserConfig":{"Namespaces":[{"Name":"n","Queues":[{"Name":"a"},\n{"Name":"A"}]}]}}',
            "line 2: Name: 'A' is used twice",
        ),
        (
            '{"UserConfig":{"Namespaces":[{"Name":"n","Queues":[{"Name":"a","Properties":{"ForwardTo":"b"}}]}]}}',
            "ForwardTo of 'a' names 'b'",
        ),
    ],
)
def test_other_mistakes(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as complaint:
        parse_config(text)
    assert words in str(complaint.value)


def test_a_missing_file_and_a_binary_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read the configuration .*: No such file"):
        read_config(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config(tmp_path / "binary.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def plain(node: object) -> object:
    value = getattr(node, "value", node)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def test_text_that_could_not_be_stored_is_refused_with_its_line() -> None:
    with pytest.raises(LocatedError, match=r"line 2.*surrogate"):
        parse('{"UserMetadata":\n "\\ud800"}')


@settings(deadline=None, print_blob=True, max_examples=100)
@given(json_values, st.sampled_from([None, 2]))
def test_located_json_reads_what_json_writes(value: object, indent: int | None) -> None:
    import json

    assert plain(parse(json.dumps(value, indent=indent))) == value


@settings(deadline=None, print_blob=True, max_examples=200)
@given(st.text(alphabet='{}[]",:0-1truefalsnE.\\ \n', max_size=40))
def test_located_json_refuses_with_a_line_or_agrees_with_json(text: str) -> None:
    import json

    try:
        found = plain(parse(text))
    except LocatedError as error:
        assert str(error).startswith("line ")
        return
    assert json.loads(text) == found
