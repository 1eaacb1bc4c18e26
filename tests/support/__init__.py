"""Shared parts of the tests that users do not need; what they may use is in `pairbus.testing`."""
