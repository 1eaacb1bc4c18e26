"""The story of `pairbus demo`: two outages of the primary, seen from applications that keep sending.

The participants count every number it shows: senders count what was accepted, receivers what they received. The ledger,
read by Spark, counts independently. If they disagree, the demo says so and fails.
"""
