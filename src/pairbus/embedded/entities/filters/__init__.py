"""Which messages a subscription's rule takes, and what its action makes of them.

`compile_filter` and `compile_action` turn a rule's description into functions of a message (`MessageView`); a bad
expression is refused here, with one sentence. What they return may raise `EvaluationError` when it meets a message
it makes no sense for (`price > 10` where the price is text); nothing else. Both are meant to be called once per rule
and their results kept.

Correlation filters: every property they name must be equal in the message.

Text is compared with its case. Numbers are equal when they are the same number, whatever their AMQP types. A message
that lacks a named property, or holds another kind of value there, is not taken; nothing here can fail.
"""

from collections.abc import Callable
from uuid import UUID, uuid4

from pairbus.embedded.entities.descriptions import (
    CorrelationFilter,
    FalseFilter,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
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
    """The test a rule makes. `new_id` is where `newid()` gets its values from."""
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
            return compile_correlation(rule_filter)
        case SqlFilter(expression, parameters):
            tree = parse_filter(expression)
            test = Compiler("filter", parameters, new_id).predicate(tree)
            return lambda view: test(view) is True


def compile_action(action: SqlAction, *, new_id: Callable[[], UUID] = uuid4) -> Callable[[MutableMessageView], None]:
    """What a rule does to its copy of a message it took."""
    statements = parse_action(action.expression)
    if len(statements) > MAX_STATEMENTS:
        raise InvalidError(f"The SQL action has {len(statements)} statements: at most {MAX_STATEMENTS} are allowed.")
    try:
        compiler = Compiler("action", action.parameters, new_id)
    except EvaluationError as error:
        raise InvalidError(f"A parameter of the action cannot be used: {error}") from None
    acts = tuple(compile_statement(statement, compiler) for statement in statements)

    def act(view: MutableMessageView) -> None:
        for step in acts:
            step(view)

    return act


def compile_correlation(correlation: CorrelationFilter) -> Callable[[MessageView], bool]:
    system = tuple(
        (name, wanted)
        for name, wanted in (
            ("CorrelationId", correlation.correlation_id),
            ("MessageId", correlation.message_id),
            ("To", correlation.to),
            ("ReplyTo", correlation.reply_to),
            ("Label", correlation.label),
            ("SessionId", correlation.session_id),
            ("ReplyToSessionId", correlation.reply_to_session_id),
            ("ContentType", correlation.content_type),
        )
        if wanted is not None
    )
    application = tuple((name.lower(), plain(wanted)) for name, wanted in correlation.properties.items())

    def test(view: MessageView) -> bool:
        for name, text in system:
            if view.system_property(name) != text:
                return False
        return all(same(view.application_property(folded), wanted) for folded, wanted in application)

    return test
