"""Filters and actions of rules: which messages a subscription gets, and what its actions change.

`compile_filter` and `compile_action` turn a rule's description into functions of a message (`MessageView`). They refuse
a bad expression with one sentence. The functions they return may raise `EvaluationError`, and nothing else, for a
message they cannot be evaluated on (`price > 10` where the price is text). Compile each rule once and keep the result.
"""

from collections.abc import Callable
from uuid import UUID, uuid4

from pairbus.embedded.entities.descriptions import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    element_name,
)
from pairbus.embedded.entities.filters.actions import compile_statement
from pairbus.embedded.entities.filters.compiling import Compiler
from pairbus.embedded.entities.filters.syntax import parse_action, parse_filter
from pairbus.embedded.entities.filters.values import EvaluationError, plain, same
from pairbus.embedded.entities.filters.views import MessageProperties, MessageView, MutableMessageView
from pairbus.embedded.errors import InvalidError

__all__ = [
    "MAX_STATEMENTS",
    "EvaluationError",
    "MessageProperties",
    "MessageView",
    "MutableMessageView",
    "compile_action",
    "compile_filter",
]

MAX_STATEMENTS = 32


def compile_filter(rule_filter: RuleFilter, *, new_id: Callable[[], UUID] = uuid4) -> Callable[[MessageView], bool]:
    """The filter as a test of messages. `new_id` supplies the values of `newid()`."""
    try:
        return _compile_filter(rule_filter, new_id)
    except EvaluationError as error:
        raise InvalidError(f"A parameter or property of the filter cannot be compared: {error}") from None


def _compile_filter(rule_filter: RuleFilter, new_id: Callable[[], UUID]) -> Callable[[MessageView], bool]:
    match rule_filter:
        case TrueFilter():
            return lambda view: True
        case FalseFilter():
            return lambda view: False
        case CorrelationFilter():
            return _compile_correlation(rule_filter)
        case SqlFilter(expression, parameters):
            tree = parse_filter(expression)
            test = Compiler("filter", parameters, new_id).predicate(tree)
            return lambda view: test(view) is True


def compile_action(action: SqlAction, *, new_id: Callable[[], UUID] = uuid4) -> Callable[[MutableMessageView], None]:
    """The action as a function that changes a copy of a message."""
    statements = parse_action(action.expression)
    if len(statements) > MAX_STATEMENTS:
        raise InvalidError(f"The SQL action has {len(statements)} statements. At most {MAX_STATEMENTS} are allowed.")
    try:
        compiler = Compiler("action", action.parameters, new_id)
    except EvaluationError as error:
        raise InvalidError(f"A parameter of the action cannot be used: {error}") from None
    steps = tuple(compile_statement(statement, compiler) for statement in statements)

    def act(view: MutableMessageView) -> None:
        for step in steps:
            step(view)

    return act


def _compile_correlation(correlation: CorrelationFilter) -> Callable[[MessageView], bool]:
    """Text is compared with its case, numbers by value whatever their AMQP types. This test never fails."""
    system = tuple(
        (element_name(field_name), wanted)
        for field_name in CORRELATION_FIELDS
        if (wanted := getattr(correlation, field_name)) is not None
    )
    application = tuple((name.lower(), plain(wanted)) for name, wanted in correlation.properties.items())

    def test(view: MessageView) -> bool:
        for name, text in system:
            if view.system_property(name) != text:
                return False
        return all(same(view.application_property(folded), wanted) for folded, wanted in application)

    return test
