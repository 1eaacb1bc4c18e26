"""The story of `pairbus demo`: two outages of the primary, seen from applications that keep sending.

The senders and the census of a drill count every number it shows: what was accepted, and where each message is at the
end. The ledger, read by Spark, counts independently. If they disagree, the demo says so and fails.
"""
