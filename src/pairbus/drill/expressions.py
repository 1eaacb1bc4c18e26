"""Expectations and conditions: `lost == 0`, `p99_send < 2s and duplicates(orders) <= 1`, `state(orders) == suspect`.

    expression = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation   = "not" negation | "(" expression ")" | comparison
    comparison = operand ("==" | "!=" | "<" | "<=" | ">" | ">=") operand
    operand    = number [unit] | metric [ "(" entity ")" ] | state
    entity     = a word, or a text in double quotes

Rules:
- Kinds are checked before anything runs: a count is compared with a number, a time with a number that has a unit (ms,
  s, m, h), a state with `healthy`, `suspect` or `failed_over`, by == and != only.
- A time of sends that were never made is not a number: no comparison with it holds, and no negation of one.
- Everything has a limit: length, number of words, depth. What is wrong is one sentence that shows where.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Literal

LONGEST = 300
MOST_TOKENS = 100
DEEPEST = 10

STATES = ("healthy", "suspect", "failed_over")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,12}(?:\.\d{1,6})?)(?P<unit>ms|s|m|h)?(?![\w.])"
    r"|(?P<name>[A-Za-z_][\w-]*)|(?P<text>\"[^\"]*\")|(?P<sign>==|!=|<=|>=|<|>|\(|\)))",
    re.ASCII,
)
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Value = float | str


def is_known(value: Value) -> bool:
    """Whether there is such a value: a percentile of nothing is none."""
    return isinstance(value, str) or not math.isnan(value)


class Kind(StrEnum):
    COUNT = "count"
    TIME = "time"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class Metric:
    """Something that can be asked: of what kind, when, and whether of one entity, of all, or both."""

    kind: Kind
    meaning: str
    live: bool = True
    scope: Literal["both", "entity", "all"] = "both"


METRICS: Mapping[str, Metric] = {
    "accepted": Metric(Kind.COUNT, "messages whose send returned"),
    "refused": Metric(Kind.COUNT, "messages whose send raised: the application knows"),
    "failovers": Metric(Kind.COUNT, "changes to failed over"),
    "recoveries": Metric(Kind.COUNT, "changes from failed over to healthy"),
    "state": Metric(Kind.STATE, "the state of an entity now", scope="entity"),
    "waiting": Metric(Kind.COUNT, "messages in the backlog queues", scope="all"),
    "spooled": Metric(Kind.COUNT, "messages in the spool", scope="all"),
    "p50_send": Metric(Kind.TIME, "half of the accepted sends took no longer"),
    "p95_send": Metric(Kind.TIME, "95 of 100 accepted sends took no longer"),
    "p99_send": Metric(Kind.TIME, "99 of 100 accepted sends took no longer"),
    "max_send": Metric(Kind.TIME, "the longest accepted send"),
    "elapsed": Metric(Kind.TIME, "time since the first step", scope="all"),
    "delivered": Metric(Kind.COUNT, "accepted messages that are in their entity", live=False),
    "dead_lettered": Metric(Kind.COUNT, "accepted messages in a dead-letter queue", live=False),
    "duplicates": Metric(
        Kind.COUNT,
        "copies of accepted messages beyond the first: in their entity, or on the way to it if it does not detect them",
        live=False,
    ),
    "lost": Metric(Kind.COUNT, "accepted messages that are nowhere", live=False),
}


class ExpressionError(ValueError):
    """What is wrong with an expression; one sentence."""


Lookup = Callable[[str, str | None], Value]


@dataclass(frozen=True, slots=True)
class Operand:
    kind: Kind
    text: str
    value: Value | None = None
    metric: str | None = None
    entity: str | None = None

    def look(self, lookup: Lookup, seen: dict[str, Value]) -> Value:
        if self.metric is None:
            return self.value if self.value is not None else 0.0
        seen[self.text] = found = lookup(self.metric, self.entity)
        return found


@dataclass(frozen=True, slots=True)
class Comparison:
    left: Operand
    sign: str
    right: Operand

    def holds(self, lookup: Lookup, seen: dict[str, Value]) -> bool:
        left, right = self.left.look(lookup, seen), self.right.look(lookup, seen)
        return is_known(left) and is_known(right) and _SIGNS[self.sign](left, right)


@dataclass(frozen=True, slots=True)
class Junction:
    """All parts of it (`and`), or any (`or`). Every part is looked at, so that all values can be shown."""

    word: Literal["and", "or"]
    parts: tuple[Node, ...]

    def holds(self, lookup: Lookup, seen: dict[str, Value]) -> bool:
        found = [part.holds(lookup, seen) for part in self.parts]
        return all(found) if self.word == "and" else any(found)


@dataclass(frozen=True, slots=True)
class Negation:
    part: Node

    def holds(self, lookup: Lookup, seen: dict[str, Value]) -> bool:
        within: dict[str, Value] = {}
        held = self.part.holds(lookup, within)
        seen.update(within)
        return not held and all(map(is_known, within.values()))


Node = Comparison | Junction | Negation


@dataclass(frozen=True, slots=True)
class Expression:
    text: str
    node: Node = field(repr=False)

    def holds(self, lookup: Lookup) -> tuple[bool, dict[str, Value]]:
        """Whether it holds, and the values that decided it."""
        seen: dict[str, Value] = {}
        return self.node.holds(lookup, seen), seen

    def operands(self) -> Iterator[Operand]:
        yield from _operands(self.node)


def parse(text: str, *, entities: Mapping[str, object], live: bool) -> Expression:
    """Reads an expression about these entities; `live` ones may not ask what only the census knows."""
    if len(text) > LONGEST:
        raise ExpressionError(f"'{text[:40]}…' has {len(text)} characters: at most {LONGEST} are read.")
    return Expression(text.strip(), _Reader(text, entities, live).read())


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    unit: str | None = None


class _Reader:
    def __init__(self, text: str, entities: Mapping[str, object], live: bool) -> None:
        self._text = text.strip()
        self._entities = entities
        self._live = live
        self._tokens = self._split()
        self._at = 0

    def read(self) -> Node:
        if not self._tokens:
            raise ExpressionError("An expression is empty: write something like lost == 0.")
        node = self._disjunction(1)
        if self._at < len(self._tokens):
            raise self._wrong(f"'{self._tokens[self._at].text}' is not expected there")
        return node

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        position = 0
        while position < len(self._text):
            found = _TOKEN.match(self._text, position)
            if found is None:
                raise self._wrong(f"'{self._text[position:].strip()[:20]}' cannot be read")
            kind = str(found.lastgroup if found.lastgroup != "unit" else "number")
            tokens.append(_Token(kind, found[kind], found["unit"]))
            if len(tokens) > MOST_TOKENS:
                raise self._wrong(f"it has more than {MOST_TOKENS} words")
            position = found.end()
        return tokens

    def _disjunction(self, depth: int) -> Node:
        return self._joined("or", lambda: self._joined("and", lambda: self._negation(depth)))

    def _joined(self, word: Literal["and", "or"], part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Junction(word, tuple(parts))

    def _negation(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise self._wrong(f"it is nested more than {DEEPEST} deep")
        if self._take("not"):
            return Negation(self._negation(depth + 1))
        if self._take("("):
            node = self._disjunction(depth + 1)
            if not self._take(")"):
                raise self._wrong("a ')' is missing")
            return node
        return self._comparison()

    def _comparison(self) -> Comparison:
        left = self._operand()
        token = self._next("a comparison such as == or <=")
        if token.text not in _SIGNS:
            raise self._wrong(f"'{token.text}' is no comparison: use one of {' '.join(_SIGNS)}")
        right = self._operand()
        for one, other in ((left, right), (right, left)):
            if one.kind is not other.kind and one.metric is not None:
                raise self._wrong(f"{one.text} is a {one.kind}: {_how(one.kind)}, not with {other.text}")
        if left.kind is not right.kind:
            raise self._wrong(f"{left.text} and {right.text} cannot be compared")
        if left.kind is Kind.STATE and token.text not in ("==", "!="):
            raise self._wrong("states are compared with == or != only")
        return Comparison(left, token.text, right)

    def _operand(self) -> Operand:
        token = self._next("a number or a name")
        if token.kind == "number":
            if token.unit is None:
                return Operand(Kind.COUNT, token.text, float(token.text))
            return Operand(Kind.TIME, f"{token.text}{token.unit}", float(token.text) * _UNITS[token.unit])
        if token.kind != "name":
            raise self._wrong(f"a number or a name is expected in place of '{token.text}'")
        if token.text in STATES:
            return Operand(Kind.STATE, token.text, token.text)
        metric = METRICS.get(token.text)
        if metric is None:
            raise self._wrong(f"'{token.text}' is unknown: {_meant(token.text, [*METRICS, *STATES])}")
        if self._live and not metric.live:
            raise self._wrong(f"{token.text} is known only at the end: use it in 'expect'")
        entity = self._entity() if self._take("(") else None
        if entity is None and metric.scope == "entity":
            raise self._wrong(f"{token.text} is of one entity: write {token.text}(ENTITY)")
        if entity is not None and metric.scope == "all":
            raise self._wrong(f"{token.text} is of the whole drill: leave out the entity")
        shown = token.text if entity is None else f"{token.text}({entity})"
        return Operand(metric.kind, shown, metric=token.text, entity=entity)

    def _entity(self) -> str:
        token = self._next("an entity")
        name = token.text.strip('"')
        if token.kind not in ("name", "text") or name not in self._entities:
            raise self._wrong(f"'{name}' is no entity of this drill: {_meant(name, self._entities)}")
        if not self._take(")"):
            raise self._wrong("a ')' is missing")
        return name

    def _take(self, text: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at].text == text:
            self._at += 1
            return True
        return False

    def _next(self, expected: str) -> _Token:
        if self._at == len(self._tokens):
            raise self._wrong(f"{expected} is missing at its end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _wrong(self, what: str) -> ExpressionError:
        return ExpressionError(f"'{self._text}': {what}{'' if what.endswith(('.', '?')) else '.'}")


def _how(kind: Kind) -> str:
    return {
        Kind.COUNT: "compare it with a number",
        Kind.TIME: "compare it with a number and its unit, such as 2s or 500ms",
        Kind.STATE: f"compare it with {', '.join(STATES[:-1])} or {STATES[-1]}",
    }[kind]


def _meant(given: str, known: Mapping[str, object] | list[str]) -> str:
    words = sorted(known)
    close = get_close_matches(given, words, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known are {', '.join(words)}."


def _operands(node: Node) -> Iterator[Operand]:
    match node:
        case Comparison():
            yield from (node.left, node.right)
        case Junction():
            for part in node.parts:
                yield from _operands(part)
        case Negation():
            yield from _operands(node.part)
