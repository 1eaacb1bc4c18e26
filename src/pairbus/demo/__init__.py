"""The story that `pairbus demo` tells: two outages of the primary, seen from applications that keep sending.

Every number it shows is counted by those who took part: the senders count what was accepted, the receivers what they
have in hand, and the ledger, read by Spark, is asked independently. If they disagree, the demo says so and fails.
"""
