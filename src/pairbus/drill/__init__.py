"""Drills: scripted outages, and what is expected of them.

    scenario (TOML, checked before anything starts) -> stage (two namespaces) -> steps -> census -> expectations

Every message has an id. A message whose send returned is *accepted*. At the end it must be delivered, dead-lettered, in
the backlog or in the spool. The census looks for each message itself; a message that is nowhere is lost.
"""
