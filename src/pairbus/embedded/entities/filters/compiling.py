"""Compiles the syntax tree of an expression to functions of a message.

A predicate is true, false or unknown (None). A property that is missing or null is unknown. An operator with an unknown
operand is unknown, with three exceptions: AND is false if one part is false, OR is true if one part is true, and IN
only depends on whether its left side is unknown. A filter matches a message if it is true.

Each node becomes one closure. The most common form, a property compared with a constant, has a closure that checks the
value's type once; all others go through `values`.
"""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from pairbus.embedded.entities.filters.syntax import (
    LARGEST_INTEGER,
    AndOr,
    Arithmetic,
    Compare,
    Constant,
    Exists,
    Expression,
    InList,
    IsNull,
    Like,
    NamedProperty,
    NewId,
    Not,
    Parameter,
    Predicate,
    Property,
    Signed,
    invalid,
)
from pairbus.embedded.entities.filters.values import (
    ARITHMETIC,
    EvaluationError,
    PatternError,
    affirm,
    compile_pattern,
    equal,
    negate,
    ordering,
    plain,
    undefined,
)
from pairbus.embedded.entities.filters.views import MessageView

MAX_NESTING = 32
MAX_TERMS = 256

Evaluate = Callable[[MessageView], Any]
Test = Callable[[MessageView], bool | None]


class Compiler:
    """Compiles one expression. `kind`, "filter" or "action", names it in error messages."""

    def __init__(self, kind: str, parameters: Mapping[str, object], new_id: Callable[[], UUID]) -> None:
        self._kind = kind
        self._parameters = {name.lower(): plain(value) for name, value in parameters.items()}
        self._new_id = new_id
        self._terms = 0

    def predicate(self, node: Predicate, depth: int = 1) -> Test:
        self._check_nesting(node.position, depth)
        match node:
            case Compare():
                return self._comparison(node, depth)
            case AndOr(operator=operator):
                parts = tuple(self.predicate(part, depth + 1) for part in node.parts)
                return _logical(parts, operator == "OR")
            case Not(operand=operand):
                return _not(self.predicate(operand, depth + 1))
            case IsNull(property=tested, negated=negated):
                read = self.expression(tested, depth)
                return (lambda view: read(view) is not None) if negated else (lambda view: read(view) is None)
            case Exists(property=tested):
                return self._existence(tested, depth)
            case InList():
                return self._membership(node, depth)
            case Like():
                return self._likeness(node, depth)

    def expression(self, node: Expression, depth: int = 1) -> Evaluate:
        """A function that returns the value as the message holds it. Operators convert it with `plain`."""
        self._check_nesting(node.position, depth)
        if isinstance(node, Constant | Parameter):
            value = self._constant(node)
            return lambda view: value
        match node:
            case Property(system=None):
                self._count_term(node.position)
                folded = node.name.lower()
                return lambda view: view.application_property(folded)
            case Property(name=name):
                self._count_term(node.position)
                return lambda view: view.system_property(name)
            case Signed(sign=sign, operand=operand):
                return _signed(negate if sign == "-" else affirm, self.expression(operand, depth + 1))
            case Arithmetic(first=first, rest=rest):
                steps = tuple((ARITHMETIC[symbol], self.expression(part, depth + 1)) for symbol, part in rest)
                return _chain(self.expression(first, depth + 1), steps)
            case NewId():
                self._count_term(node.position)
                new_id = self._new_id
                return lambda view: new_id()
            case NamedProperty(name=argument):
                return _named(self.expression(argument, depth + 1))

    def _constant(self, node: Constant | Parameter) -> Any:
        self._count_term(node.position)
        if isinstance(node, Parameter):
            try:
                return self._parameters[node.name.lower()]
            except KeyError:
                raise invalid(self._kind, node.position, f"the parameter {node.name} has no value") from None
        if type(node.value) is int and node.value > LARGEST_INTEGER:
            raise invalid(self._kind, node.position, f"{node.value} is larger than a 64 bit integer, {LARGEST_INTEGER}")
        return node.value

    def _comparison(self, node: Compare, depth: int) -> Test:
        read = self.expression(node.left, depth + 1)
        other = self.expression(node.right, depth + 1)
        constant = _fixed_value(node.right, other)
        if node.operator in ("=", "<>"):
            wanted = node.operator == "="
            if constant is not None:
                return _equals_constant(read, constant, wanted)
            return _compared(read, other, equal if wanted else lambda left, right: not equal(left, right))
        if constant is not None:
            return _ordered_with_constant(read, constant, ordering(node.operator))
        return _compared(read, other, ordering(node.operator))

    def _existence(self, tested: Property, depth: int) -> Test:
        if tested.system is not None:
            read = self.expression(tested, depth)
            return lambda view: read(view) is not None
        self._count_term(tested.position)
        folded = tested.name.lower()
        return lambda view: view.has_application_property(folded)

    def _membership(self, node: InList, depth: int) -> Test:
        read = self.expression(node.left, depth + 1)
        matches, differs = not node.negated, node.negated
        if all(isinstance(choice, Constant) and type(choice.value) is str for choice in node.choices):
            texts = frozenset(self._constant(choice) for choice in node.choices if isinstance(choice, Constant))
            return _in_texts(read, texts, matches)
        choices = tuple(self.expression(choice, depth + 1) for choice in node.choices)

        def test(view: MessageView) -> bool | None:
            value = plain(read(view))
            if value is None:
                return None
            for choose in choices:
                choice = plain(choose(view))
                if choice is not None and equal(value, choice):
                    return matches
            return differs

        return test

    def _likeness(self, node: Like, depth: int) -> Test:
        read = self.expression(node.left, depth + 1)
        wanted = not node.negated
        pattern = self.expression(node.pattern, depth + 1)
        escape = None if node.escape is None else self.expression(node.escape, depth + 1)
        texts = [_fixed_value(node.pattern, pattern)]
        if node.escape is not None and escape is not None:
            texts.append(_fixed_value(node.escape, escape))
        if any(text is None for text in texts):
            return _like_computed(read, pattern, escape, wanted)
        if any(type(text) is not str for text in texts):
            raise invalid(self._kind, node.pattern.position, "the pattern and the escape of LIKE must be text")
        try:
            matches = compile_pattern(*texts)
        except PatternError as error:
            raise invalid(self._kind, node.pattern.position, str(error)) from None
        return _like(read, matches, wanted)

    def _check_nesting(self, position: int, depth: int) -> None:
        if depth > MAX_NESTING:
            raise invalid(self._kind, position, f"expressions may be nested {MAX_NESTING} deep, and this one is deeper")

    def _count_term(self, position: int) -> None:
        self._terms += 1
        if self._terms > MAX_TERMS:
            raise invalid(self._kind, position, f"at most {MAX_TERMS} values and properties are allowed")


def _fixed_value(node: Expression, evaluate: Evaluate) -> Any:
    """The value of a constant or parameter; None for NULL and all other nodes."""
    no_message: Any = None
    return evaluate(no_message) if isinstance(node, Constant | Parameter) else None


def _logical(parts: tuple[Test, ...], decisive: bool) -> Test:
    """AND (`decisive` is False) or OR (`decisive` is True): one decisive part decides."""

    def test(view: MessageView) -> bool | None:
        verdict: bool | None = not decisive
        for part in parts:
            result = part(view)
            if result is decisive:
                return decisive
            if result is None:
                verdict = None
        return verdict

    return test


def _not(part: Test) -> Test:
    def test(view: MessageView) -> bool | None:
        result = part(view)
        return None if result is None else not result

    return test


def _equals_constant(read: Evaluate, constant: Any, wanted: bool) -> Test:
    kind = type(constant)

    def test(view: MessageView) -> bool | None:
        value = read(view)
        if value.__class__ is kind:
            return (value == constant) is wanted
        if value is None:
            return None
        return equal(plain(value), constant) is wanted

    return test


def _ordered_with_constant(read: Evaluate, constant: Any, compare: Callable[[Any, Any], bool]) -> Test:
    def test(view: MessageView) -> bool | None:
        value = read(view)
        return None if value is None else compare(plain(value), constant)

    return test


def _compared(left: Evaluate, right: Evaluate, compare: Callable[[Any, Any], bool]) -> Test:
    def test(view: MessageView) -> bool | None:
        first, second = plain(left(view)), plain(right(view))
        return None if first is None or second is None else compare(first, second)

    return test


def _in_texts(read: Evaluate, texts: frozenset[str], wanted: bool) -> Test:
    sample = next(iter(texts))

    def test(view: MessageView) -> bool | None:
        value = plain(read(view))
        if value.__class__ is str:
            return (value in texts) is wanted
        if value is None:
            return None
        raise undefined("IN", value, sample)

    return test


def _like(read: Evaluate, matches: Callable[[str], bool], wanted: bool) -> Test:
    def test(view: MessageView) -> bool | None:
        value = plain(read(view))
        return None if value is None else matches(_text(value)) is wanted

    return test


def _like_computed(read: Evaluate, pattern: Evaluate, escape: Evaluate | None, wanted: bool) -> Test:
    def test(view: MessageView) -> bool | None:
        value, like = plain(read(view)), plain(pattern(view))
        escaped = None if escape is None else plain(escape(view))
        if value is None or like is None or (escape is not None and escaped is None):
            return None
        try:
            matches = compile_pattern(_text(like), None if escaped is None else _text(escaped))
        except PatternError as error:
            raise EvaluationError(f"LIKE cannot be evaluated: {error}.") from None
        return matches(_text(value)) is wanted

    return test


def _text(value: object) -> str:
    if type(value) is not str:
        raise EvaluationError("LIKE is defined for text only.")
    return value


def _signed(apply: Callable[[Any], Any], read: Evaluate) -> Evaluate:
    def evaluate(view: MessageView) -> Any:
        value = plain(read(view))
        return None if value is None else apply(value)

    return evaluate


def _chain(first: Evaluate, steps: tuple[tuple[Callable[[Any, Any], Any], Evaluate], ...]) -> Evaluate:
    def evaluate(view: MessageView) -> Any:
        value = plain(first(view))
        for apply, read in steps:
            operand = plain(read(view))
            value = None if value is None or operand is None else apply(value, operand)
        return value

    return evaluate


def _named(argument: Evaluate) -> Evaluate:
    """`property(name)`: the application property with a computed name."""

    def evaluate(view: MessageView) -> Any:
        name = plain(argument(view))
        if name is None:
            return None
        if type(name) is not str:
            raise EvaluationError("The name in property(name) must be text.")
        return view.application_property(name.lower())

    return evaluate
