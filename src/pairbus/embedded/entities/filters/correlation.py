"""Correlation filters: every property they name must be equal in the message.

Text is compared with its case. Numbers are equal when they are the same number, whatever their AMQP types. A message
that lacks a named property, or holds another kind of value there, is not taken; nothing here can fail.
"""

from collections.abc import Callable

from pairbus.embedded.entities.filters.values import plain, same
from pairbus.embedded.entities.filters.views import MessageView
from pairbus.embedded.entities.rules import CorrelationFilter


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
