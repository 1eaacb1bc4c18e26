"""Compiles an expression, bottom-up while it is parsed, to functions of a message.

A predicate is true, false or unknown (None). A property that is missing or null is unknown. An operator with an unknown
operand is unknown, with three exceptions: AND is false if one part is false, OR is true if one part is true, and IN
only depends on whether its left side is unknown. A filter matches a message if it is true.

Each node becomes one closure; parentheses leave no trace. The most common form, a property compared with a constant,
has a closure that checks the value's type once; all others go through `values`.

The statements of an action are executed in order on one copy of a message.
- A statement sees the changes of the statements before it. If one fails, the copy is discarded.
- `SET` keeps the type of an existing property if the new value fits it (an int stays an int).
- An unknown value sets null. A system property accepts only its own type, and text up to the service's length.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple, cast
from uuid import UUID

from lark import Lark, Token, Transformer, v_args

from pairbus.amqp.types import Timestamp
from pairbus.embedded.entities.filters.syntax import invalid, parse, position_of, quoted
from pairbus.embedded.entities.filters.values import (
    ARITHMETIC,
    MAX_TEXT_LENGTH,
    EvaluationError,
    PatternError,
    affirm,
    compile_pattern,
    equal,
    negate,
    ordering,
    plain,
    stored,
    undefined,
)
from pairbus.embedded.entities.filters.views import (
    MessageProperties,
    PropertyKind,
    SystemProperty,
    find_system_property,
)
from pairbus.embedded.errors import InvalidError

MAX_NESTING = 32
MAX_TERMS = 256
LARGEST_INTEGER = 2**63 - 1

Evaluate = Callable[[MessageProperties], Any]
Test = Callable[[MessageProperties], bool | None]
Act = Callable[[MessageProperties], None]


class Property(NamedTuple):
    """A property of the message: the system property `system`, or if that is None the application property `name`."""

    position: int
    name: str
    system: SystemProperty | None


class CompiledNode(NamedTuple):
    """A compiled predicate or expression.

    `evaluate` returns the value as the message holds it; operators convert it with `plain`. `height` counts the levels
    below and including this one. `constant` is the value of a constant or parameter, and None for all other nodes.
    """

    position: int
    evaluate: Evaluate
    height: int = 1
    constant: Any = None
    is_literal_integer: bool = False


class Assignment(NamedTuple):
    """`SET target = expression`, or `REMOVE target` if the expression is None."""

    target: Property
    expression: CompiledNode | None


class _Expression:
    """The expression that is being compiled: its parameters and its limits. `kind` names it in errors."""

    def __init__(self, kind: str, parameters: Mapping[str, object], new_id: Callable[[], UUID]) -> None:
        self.kind = kind
        self.parameters = {name.lower(): plain(value) for name, value in parameters.items()}
        self.new_id = new_id
        self.terms = 0


_current: ContextVar[_Expression] = ContextVar("_current")


def compile_expression(kind: str, expression: str, parameters: Mapping[str, object], new_id: Callable[[], UUID]) -> Any:
    """Compile a "filter" to a Test, or an "action" to a tuple of Assignments."""
    _current.set(_Expression(kind, parameters, new_id))
    return parse(_parser(), expression, kind)


@cache
def _parser() -> Lark:
    """Built on first use: it takes tens of milliseconds, and many namespaces have no SQL rules.

    The compiler is part of the parser, which is faster than building a tree first. So it has no state of its own.
    """
    return Lark.open_from_package(
        __package__,
        "rules.lark",
        parser="lalr",
        lexer="basic",
        start=["filter", "action"],
        maybe_placeholders=True,
        transformer=_Compiler(),
    )


@v_args(inline=True)
class _Compiler(Transformer[Token, object]):
    """One method for each rule of the grammar."""

    def filter(self, predicate: CompiledNode) -> Test:
        return predicate.evaluate

    def action(self, *assignments: Assignment) -> tuple[Assignment, ...]:
        return assignments

    def set_property(self, _set: Token, target: Property, _equal: Token, expression: CompiledNode) -> Assignment:
        self._height(expression)
        return Assignment(self._writable(target), expression)

    def remove_property(self, _remove: Token, target: Property) -> Assignment:
        return Assignment(self._writable(target), None)

    # -- predicates

    def disjunction(self, *parts: CompiledNode) -> CompiledNode:
        return self._logical(parts, decisive=True)

    def conjunction(self, *parts: CompiledNode) -> CompiledNode:
        return self._logical(parts, decisive=False)

    def _logical(self, parts: tuple[CompiledNode, ...], *, decisive: bool) -> CompiledNode:
        """AND or OR: one part that is `decisive` decides."""
        tests: tuple[Test, ...] = tuple(part.evaluate for part in parts)

        def test(view: MessageProperties) -> bool | None:
            verdict: bool | None = not decisive
            for part in tests:
                result = part(view)
                if result is decisive:
                    return decisive
                if result is None:
                    verdict = None
            return verdict

        return CompiledNode(parts[0].position, test, self._height(*parts))

    def negation(self, token: Token, operand: CompiledNode) -> CompiledNode:
        negated: Test = operand.evaluate

        def test(view: MessageProperties) -> bool | None:
            result = negated(view)
            return None if result is None else not result

        return CompiledNode(position_of(token), test, self._height(operand))

    def comparison(self, left: CompiledNode, operator: Token, right: CompiledNode) -> CompiledNode:
        if operator in ("=", "<>", "!="):
            test = _equality(left.evaluate, right, operator == "=")
        else:
            test = _ordering(left.evaluate, right, ordering(str(operator)))
        return CompiledNode(left.position, test, self._height(left, right))

    def is_null(self, tested: Property, negated: Token | None, _null: Token) -> CompiledNode:
        read = self.read(tested).evaluate
        if negated is not None:
            return CompiledNode(tested.position, lambda view: read(view) is not None)
        return CompiledNode(tested.position, lambda view: read(view) is None)

    def exists(self, token: Token, tested: Property) -> CompiledNode:
        if tested.system is not None:
            return self.is_null(tested, token, token)
        self._count_term(tested.position)
        folded = tested.name.lower()
        return CompiledNode(position_of(token), lambda view: view.has_application_property(folded))

    def membership(self, left: CompiledNode, negated: Token | None, *choices: CompiledNode) -> CompiledNode:
        read, wanted = left.evaluate, negated is None
        if all(type(choice.constant) is str for choice in choices):
            test = _in_texts(read, frozenset(choice.constant for choice in choices), wanted)
        else:
            test = _in_values(read, tuple(choice.evaluate for choice in choices), wanted)
        return CompiledNode(left.position, test, self._height(left, *choices))

    def like(
        self, left: CompiledNode, negated: Token | None, pattern: CompiledNode, escape: CompiledNode | None
    ) -> CompiledNode:
        operands = (pattern,) if escape is None else (pattern, escape)
        texts = [operand.constant for operand in operands]
        height = self._height(left, *operands)
        if any(text is None for text in texts):
            readers = tuple(operand.evaluate for operand in operands)
            return CompiledNode(left.position, _like_computed(left.evaluate, readers, negated is None), height)
        if any(type(text) is not str for text in texts):
            raise self._invalid(pattern.position, "the pattern and the escape of LIKE must be text")
        try:
            matches = compile_pattern(*texts)
        except PatternError as error:
            raise self._invalid(pattern.position, str(error)) from None
        return CompiledNode(left.position, _like(left.evaluate, matches, negated is None), height)

    def group(self, inner: CompiledNode) -> CompiledNode:
        return inner

    # -- expressions

    def chain(self, first: CompiledNode, *rest: Any) -> CompiledNode:
        """Operators of one precedence, evaluated from left to right."""
        operands: tuple[CompiledNode, ...] = rest[1::2]
        steps = tuple((ARITHMETIC[sign], operand.evaluate) for sign, operand in zip(rest[::2], operands, strict=True))
        start = first.evaluate

        def evaluate(view: MessageProperties) -> Any:
            value = plain(start(view))
            for apply, read in steps:
                operand = plain(read(view))
                value = None if value is None or operand is None else apply(value, operand)
            return value

        return CompiledNode(first.position, evaluate, self._height(first, *operands))

    def signed(self, sign: Token, operand: CompiledNode) -> CompiledNode:
        if sign == "-" and operand.is_literal_integer:
            return _constant(position_of(sign), -operand.constant, is_literal_integer=True)
        apply, read = negate if sign == "-" else affirm, operand.evaluate

        def evaluate(view: MessageProperties) -> Any:
            value = plain(read(view))
            return None if value is None else apply(value)

        return CompiledNode(position_of(sign), evaluate, self._height(operand))

    def call(self, name: Token, argument: CompiledNode | None) -> CompiledNode:
        position = position_of(name)
        match name.lower():
            case "newid" if argument is None:
                self._count_term(position)
                new_id = _current.get().new_id
                return CompiledNode(position, lambda view: new_id())
            case "p" | "property" if argument is not None:
                return CompiledNode(position, _named(argument.evaluate), self._height(argument))
            case "newid":
                raise self._invalid(cast(CompiledNode, argument).position, "newid() takes no argument")
            case "p" | "property":
                raise self._invalid(position, f"{name}() needs the name of a property, as in {name}('color')")
            case _:
                problem = f"{quoted(str(name))} is not a function, expected newid(), property(name) or p(name)"
                raise self._invalid(position, problem)

    def parameter(self, token: Token) -> CompiledNode:
        self._count_term(position_of(token))
        try:
            return _constant(position_of(token), _current.get().parameters[token.lower()])
        except KeyError:
            raise self._invalid(position_of(token), f"the parameter {token} has no value") from None

    def text(self, token: Token) -> CompiledNode:
        self._count_term(position_of(token))
        return _constant(position_of(token), token[1:-1].replace("''", "'"))

    def integer(self, token: Token) -> CompiledNode:
        self._count_term(position_of(token))
        value = int(token, 16 if token.type == "HEXADECIMAL" else 10)
        # One more than the largest integer is allowed here because its negative is; `_height` refuses it alone.
        if value > LARGEST_INTEGER + 1:
            raise self._too_large(position_of(token), quoted(str(token)))
        return _constant(position_of(token), value, is_literal_integer=True)

    def real(self, token: Token) -> CompiledNode:
        self._count_term(position_of(token))
        value = float(token)
        if value == float("inf"):
            raise self._invalid(position_of(token), f"{quoted(str(token))} is larger than a double")
        return _constant(position_of(token), value)

    def word(self, token: Token) -> CompiledNode:
        self._count_term(position_of(token))
        return _constant(position_of(token), {"TRUE": True, "FALSE": False, "NULL": None}[token.type])

    def read(self, target: Property) -> CompiledNode:
        self._count_term(target.position)
        name, folded = target.name, target.name.lower()
        if target.system is None:
            return CompiledNode(target.position, lambda view: view.application_property(folded))
        return CompiledNode(target.position, lambda view: view.system_property(name))

    # -- properties

    def unscoped(self, token: Token) -> Property:
        return Property(position_of(token), self._name(token), None)

    def scoped(self, scope: Token, token: Token) -> Property:
        name, position = self._name(token), position_of(scope)
        match scope.lower():
            case "user":
                return Property(position, name, None)
            case "sys":
                system = find_system_property(name)
                if system is None:
                    problem = f"the service has no system property {quoted(name)}"
                    raise self._invalid(position_of(token), problem)
                return Property(position, system.name, system)
            case _:
                problem = f"expected the scope sys or user before the dot, found {quoted(str(scope))}"
                raise self._invalid(position, f"{problem} (a name that contains a dot must be in brackets)")

    def _name(self, token: Token) -> str:
        match token.type:
            case "DELIMITED":
                return token[1:-1].replace("]]", "]")
            case "QUOTED":
                return token[1:-1].replace('""', '"')
        # The terminal's pattern allows a few characters (², ½) that are neither letters nor decimal digits.
        if not all(character.isalpha() or character.isdecimal() or character == "_" for character in token):
            problem = f"a property name like {quoted(str(token))} must be in brackets, as in [name]"
            raise self._invalid(position_of(token), problem)
        return str(token)

    def _writable(self, target: Property) -> Property:
        if target.system is not None and not target.system.writable:
            raise self._invalid(target.position, f"sys.{target.name} belongs to the service and cannot be changed")
        return target

    # -- limits

    def _height(self, *operands: CompiledNode) -> int:
        """The height of a node above these operands."""
        for operand in operands:
            if operand.is_literal_integer and operand.constant > LARGEST_INTEGER:
                raise self._too_large(operand.position, str(operand.constant))
        height = 1 + max(operand.height for operand in operands)
        if height > MAX_NESTING:
            problem = f"expressions may be nested {MAX_NESTING} deep, and this one is deeper"
            raise self._invalid(operands[0].position, problem)
        return height

    def _count_term(self, position: int) -> None:
        expression = _current.get()
        expression.terms += 1
        if expression.terms > MAX_TERMS:
            raise self._invalid(position, f"at most {MAX_TERMS} values and properties are allowed")

    def _too_large(self, position: int, integer: str) -> InvalidError:
        return self._invalid(position, f"{integer} is larger than a 64 bit integer, {LARGEST_INTEGER}")

    def _invalid(self, position: int, problem: str) -> InvalidError:
        return invalid(_current.get().kind, position, problem)


def _constant(position: int, value: Any, *, is_literal_integer: bool = False) -> CompiledNode:
    return CompiledNode(position, lambda view: value, 1, value, is_literal_integer)


def _equality(read: Evaluate, right: CompiledNode, wanted: bool) -> Test:
    constant = right.constant
    if constant is None:
        return _compared(read, right.evaluate, lambda left, other: equal(left, other) is wanted)
    kind = type(constant)

    def test(view: MessageProperties) -> bool | None:
        value = read(view)
        if value.__class__ is kind:
            return (value == constant) is wanted
        return None if value is None else equal(plain(value), constant) is wanted

    return test


def _ordering(read: Evaluate, right: CompiledNode, compare: Callable[[Any, Any], bool]) -> Test:
    constant = right.constant
    if constant is None:
        return _compared(read, right.evaluate, compare)

    def test(view: MessageProperties) -> bool | None:
        value = read(view)
        return None if value is None else compare(plain(value), constant)

    return test


def _compared(left: Evaluate, right: Evaluate, compare: Callable[[Any, Any], bool]) -> Test:
    def test(view: MessageProperties) -> bool | None:
        first, second = plain(left(view)), plain(right(view))
        return None if first is None or second is None else compare(first, second)

    return test


def _in_texts(read: Evaluate, texts: frozenset[str], wanted: bool) -> Test:
    sample = next(iter(texts))

    def test(view: MessageProperties) -> bool | None:
        value = plain(read(view))
        if value.__class__ is str:
            return (value in texts) is wanted
        if value is None:
            return None
        raise undefined("IN", value, sample)

    return test


def _in_values(read: Evaluate, choices: tuple[Evaluate, ...], wanted: bool) -> Test:
    def test(view: MessageProperties) -> bool | None:
        value = plain(read(view))
        if value is None:
            return None
        for choose in choices:
            choice = plain(choose(view))
            if choice is not None and equal(value, choice):
                return wanted
        return not wanted

    return test


def _like(read: Evaluate, matches: Callable[[str], bool], wanted: bool) -> Test:
    def test(view: MessageProperties) -> bool | None:
        value = plain(read(view))
        return None if value is None else matches(_text(value)) is wanted

    return test


def _like_computed(read: Evaluate, operands: tuple[Evaluate, ...], wanted: bool) -> Test:
    """LIKE whose pattern, or escape, is not a constant."""

    def test(view: MessageProperties) -> bool | None:
        values = [plain(evaluate(view)) for evaluate in (read, *operands)]
        if any(value is None for value in values):
            return None
        text, *pattern = map(_text, values)
        try:
            return compile_pattern(*pattern)(text) is wanted
        except PatternError as error:
            raise EvaluationError(f"LIKE cannot be evaluated: {error}.") from None

    return test


def _text(value: object) -> str:
    if type(value) is not str:
        raise EvaluationError("LIKE is defined for text only.")
    return value


def _named(argument: Evaluate) -> Evaluate:
    """`property(name)`: the application property with a computed name."""

    def evaluate(view: MessageProperties) -> Any:
        name = plain(argument(view))
        if name is None:
            return None
        if type(name) is not str:
            raise EvaluationError("The name in property(name) must be text.")
        return view.application_property(name.lower())

    return evaluate


# -- actions


def compile_assignment(assignment: Assignment) -> Act:
    target, name, folded = assignment.target, assignment.target.name, assignment.target.name.lower()
    system = target.system
    if assignment.expression is None:
        if system is None:
            return lambda view: view.remove_application_property(name)
        return lambda view: view.set_system_property(name, None)
    evaluate = assignment.expression.evaluate
    if system is None:
        return lambda view: view.set_application_property(
            name, stored(evaluate(view), view.application_property(folded))
        )

    def set_system(view: MessageProperties) -> None:
        value = plain(evaluate(view))
        view.set_system_property(name, None if value is None else _checked(system, value))

    return set_system


def _checked(system: SystemProperty, value: object) -> object:
    match system.kind, value:
        case PropertyKind.TEXT, str(text):
            max_length = system.max_length or MAX_TEXT_LENGTH
            if len(text) <= max_length:
                return text
            raise EvaluationError(
                f"sys.{system.name} would have {len(text)} characters. At most {max_length} are allowed."
            )
        case PropertyKind.TEXT, UUID():
            return str(value)
        case PropertyKind.BOOLEAN, bool():
            return value
        case PropertyKind.TIME, Timestamp():
            return value
        case PropertyKind.DURATION, timedelta() as duration if duration >= timedelta():
            return duration
    raise EvaluationError(f"sys.{system.name} can only be set to {system.kind.value}.")
