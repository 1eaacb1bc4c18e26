"""A short run of every fuzz target, with a fixed seed; `make fuzz` runs them longer, with another seed each time."""

from __future__ import annotations

import pytest
from tests.support.fuzzing import TARGETS, attack_server, fuzz

INPUTS = {"sql": 1_500, "amqp-frames": 1_500, "atom": 3_000}


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_input_stays_within_its_bounds(name: str) -> None:
    most = INPUTS.get(name, 5_000)
    assert fuzz(name, 1, lambda inputs: inputs >= most).inputs == most


def test_a_client_is_served_while_others_send_noise() -> None:
    assert attack_server(1, lambda attacks: attacks >= 300) == 300
