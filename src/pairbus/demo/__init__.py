"""The story that `pairbus demo` tells: an outage of the primary, seen from an application that keeps sending.

Every number it shows is counted by those who took part: the sender counts what was accepted, the receiver what it
settled, and the ledger, read by Spark, is asked independently. If they disagree, the demo says so and fails.
"""
