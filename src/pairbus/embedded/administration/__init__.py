"""The administration endpoint: entities, rules and runtime counts over HTTP, as Atom XML.

A request passes through `endpoint` (HTTP, tokens, limits, faults), `operations` (the resource its path names, and what
to do with it) and `atom` (request and response bodies). `elements` defines every XML element once, including the
filters and actions of rules. `control` serves pairbus's own routes: health, faults and keys.
"""
