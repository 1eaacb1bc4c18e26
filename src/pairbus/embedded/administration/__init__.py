"""The administration endpoint: entities, rules and runtime counts over HTTP, as Atom XML.

The way of a request: `endpoint` (HTTP, tokens, limits) → `targets` (what the path names) → `operations` (what
to do) → `reading` and `writing` (Atom), with `elements` naming every element once and `filters_xml` for
rules. `refusals` turns every error into the service's error body. `control` answers what is ours: health and
faults.
"""
