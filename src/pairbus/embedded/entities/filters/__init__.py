"""Filters and actions of rules: which messages a subscription gets, and what its actions change.

`compile_filter` and `compile_action` turn a rule's description into functions of a message (`MessageProperties`). They
refuse a bad expression with one sentence. The functions they return may raise `EvaluationError`, and nothing else, for
a message they cannot be evaluated on (`price > 10` where the price is text). Compile each rule once and keep the
result.
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
from pairbus.embedded.entities.filters.compiling import compile_assignment, compile_expression
from pairbus.embedded.entities.filters.values import EvaluationError, plain, same
from pairbus.embedded.entities.filters.views import MessageProperties
from pairbus.embedded.errors import InvalidError

__all__ = [
    "MAX_STATEMENTS",
    "EvaluationError",
    "MessageProperties",
    "compile_action",
    "compile_filter",
]

MAX_STATEMENTS = 32


def compile_filter(rule_filter: RuleFilter) -> Callable[[MessageProperties], bool]:
    """The filter as a test of messages."""
    try:
        match rule_filter:
            case TrueFilter():
                return lambda view: True
            case FalseFilter():
                return lambda view: False
            case CorrelationFilter():
                return _compile_correlation(rule_filter)
            case SqlFilter(expression, parameters):
                test = compile_expression("filter", expression, parameters, uuid4)
                return lambda view: test(view) is True
    except EvaluationError as error:
        raise InvalidError(f"A parameter or property of the filter cannot be compared: {error}") from None


def compile_action(action: SqlAction, *, new_id: Callable[[], UUID] = uuid4) -> Callable[[MessageProperties], None]:
    """The action as a function that changes a copy of a message. `new_id` supplies the values of `newid()`."""
    try:
        assignments = compile_expression("action", action.expression, action.parameters, new_id)
    except EvaluationError as error:
        raise InvalidError(f"A parameter of the action cannot be used: {error}") from None
    if len(assignments) > MAX_STATEMENTS:
        raise InvalidError(f"The SQL action has {len(assignments)} statements. At most {MAX_STATEMENTS} are allowed.")
    steps = tuple(map(compile_assignment, assignments))

    def act(view: MessageProperties) -> None:
        for step in steps:
            step(view)

    return act


def _compile_correlation(correlation: CorrelationFilter) -> Callable[[MessageProperties], bool]:
    """Text is compared with its case, numbers by value whatever their AMQP types. This test never fails."""
    system = tuple(
        (element_name(field_name), wanted)
        for field_name in CORRELATION_FIELDS
        if (wanted := getattr(correlation, field_name)) is not None
    )
    application = tuple((name.lower(), plain(wanted)) for name, wanted in correlation.properties.items())

    def test(view: MessageProperties) -> bool:
        for name, text in system:
            if view.system_property(name) != text:
                return False
        return all(same(view.application_property(folded), wanted) for folded, wanted in application)

    return test
