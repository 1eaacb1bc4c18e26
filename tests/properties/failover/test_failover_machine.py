"""Whatever happens to a set of entities, in whatever order, the rules of failover hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from pairbus.failover.rotation import Rotation
from pairbus.failover.states import Action, Decision, EntityMachine, EntityState, Event, EventKind, FailoverRules

NAMES = ("orders", "invoices", "events")


@dataclass
class Shell:
    """An entity and the pings that its shell has in flight."""

    entity: EntityMachine
    pings_in_flight: list[int] = field(default_factory=list)
    pings_since_failure: int = 0

    def apply(self, decision: Decision) -> None:
        for change in decision.transitions:
            if change.after is EntityState.FAILED_OVER:
                self.pings_since_failure = 0
        if decision.action is Action.SEND_PING:
            self.pings_in_flight.append(self.entity.era)


class Failover(RuleBasedStateMachine):
    sends = Bundle("sends")

    @initialize(
        interval=st.sampled_from([0.0, 1.0, 60.0]),
        ping=st.sampled_from([1.0, 60.0]),
        pings=st.integers(1, 3),
        divert=st.booleans(),
    )
    def begin(self, interval: float, ping: float, pings: int, divert: bool) -> None:
        self.now = 0.0
        self.chosen = FailoverRules(interval, ping, pings, divert)
        self.shells = {name: Shell(EntityMachine(self.chosen)) for name in NAMES}

    def tell(self, name: str, event: Event) -> Decision:
        others = {other: self.seen(other) for other in NAMES if other != name}
        decision = self.shells[name].entity.handle(event, self.now)
        self.shells[name].apply(decision)
        assert others == {other: self.seen(other) for other in others}, "entities never influence each other"
        for change in decision.transitions:
            assert change.before is not change.after
        return decision

    def seen(self, name: str) -> tuple[EntityState, float | None, int]:
        entity = self.shells[name].entity
        return entity.state, entity.next_deadline, entity.era

    @rule(target=sends, name=st.sampled_from(NAMES))
    def begin_send(self, name: str) -> tuple[str, int, bool]:
        entity = self.shells[name].entity
        if entity.state is EntityState.FAILED_OVER:
            assert not entity.route_to_primary, "no send is routed to the primary while failed over"
        return name, entity.era, entity.route_to_primary

    @rule(send=sends, works=st.booleans())
    def end_send(self, send: tuple[str, int, bool], works: bool) -> None:
        name, era, to_primary = send
        if not to_primary:
            return
        entity = self.shells[name].entity
        before = entity.state
        if works:
            self.tell(name, Event(EventKind.SEND_SUCCEEDED, era=era))
            if before is EntityState.FAILED_OVER:
                assert entity.state is EntityState.FAILED_OVER, "only pings bring an entity back"
            return
        late = era != entity.era
        decision = self.tell(name, Event(EventKind.SEND_FAILED, "error", era))
        assert decision.action in (Action.RAISE, Action.DIVERT), "a failed message is diverted or its error raised"
        if self.chosen.divert_during_interval or entity.state is EntityState.FAILED_OVER:
            assert decision.divert
        if late and before is EntityState.HEALTHY:
            assert entity.state is EntityState.HEALTHY, "an earlier era says nothing about this one"

    @rule(name=st.sampled_from(NAMES), works=st.booleans())
    def end_ping(self, name: str, works: bool) -> None:
        shell = self.shells[name]
        if not shell.pings_in_flight:
            return
        era = shell.pings_in_flight.pop()
        before = shell.entity.state
        timely = before is EntityState.FAILED_OVER and era == shell.entity.era
        shell.pings_since_failure = shell.pings_since_failure + 1 if works else 0
        self.tell(name, Event(EventKind.PING_SUCCEEDED if works else EventKind.PING_FAILED, "ping", era))
        if before is EntityState.FAILED_OVER and shell.entity.state is EntityState.HEALTHY:
            assert works and timely
        if timely and not works:
            assert shell.entity.state is EntityState.FAILED_OVER

    @rule(name=st.sampled_from(NAMES), healthy=st.booleans())
    def override(self, name: str, healthy: bool) -> None:
        self.tell(name, Event(EventKind.MARK_HEALTHY if healthy else EventKind.FAIL_OVER, "user"))
        expected = EntityState.HEALTHY if healthy else EntityState.FAILED_OVER
        assert self.shells[name].entity.state is expected

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0, 3600.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from(NAMES))
    def keep_the_deadline(self, name: str) -> None:
        entity = self.shells[name].entity
        deadline = entity.next_deadline
        before = entity.state
        self.tell(name, Event(EventKind.DEADLINE))
        if deadline is None or self.now < deadline:
            assert entity.state is before
        elif before is EntityState.SUSPECT:
            assert entity.state is EntityState.FAILED_OVER, "the timer runs out by itself"

    @invariant()
    def deadlines_fit_the_state(self) -> None:
        for shell in getattr(self, "shells", {}).values():
            entity = shell.entity
            state = entity.state
            assert entity.route_to_primary is (state is not EntityState.FAILED_OVER)
            if state is EntityState.HEALTHY:
                assert entity.next_deadline is None
            if state is EntityState.SUSPECT:
                assert entity.next_deadline is not None, "a suspect entity ends healthy or failed over"
            if state is EntityState.FAILED_OVER and entity.era not in shell.pings_in_flight:
                assert entity.next_deadline is not None, "a ping is due or in flight"


TestFailover = Failover.TestCase
TestFailover.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@given(
    count=st.integers(1, 6),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["pull", "put_back", "wait", "pick"]),
            st.integers(0, 5),
            st.floats(0, 1, exclude_max=True),
        ),
        max_size=40,
    ),
)
@settings(max_examples=200, deadline=None, print_blob=True)
def test_rotation_never_picks_a_pulled_queue_while_another_is_left(
    count: int, steps: list[tuple[str, int, float]]
) -> None:
    queues = [f"contoso/x-servicebus-transfer/{index}" for index in range(count)]
    rotation = Rotation(queues, rest_seconds=60)
    pulled_at: dict[str, float] = {}
    now = 0.0
    for what, index, fraction in steps:
        queue = queues[index % count]
        if what == "pull":
            rotation.pull(queue, now)
            pulled_at[queue] = now
        elif what == "put_back":
            rotation.put_back(queue)
            pulled_at.pop(queue, None)
        elif what == "wait":
            now += fraction * 40
        else:
            resting = {one for one, since in pulled_at.items() if now < since + 60}
            picked = rotation.pick(fraction, now)
            if len(resting) == count:  # a probe, at the earliest a second after the first failure
                assert picked is None or now >= min(pulled_at.values()) + 1
            else:
                assert picked in set(queues) - resting
