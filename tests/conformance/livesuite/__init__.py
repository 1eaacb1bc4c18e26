"""The official SDK's own live tests, run unchanged against embedded namespaces.

What stands in for Azure, and nothing else, is ours:

- ``network``: the names of the namespaces resolve to embedded servers on this machine, and their certificates
  are trusted, as a hosts file and a local certificate authority would do it. The SDK itself is not patched:
  it speaks AMQP, HTTPS and web sockets over TLS as it does with the cloud.
- ``namespaces``: a namespace that a test asks for is a ``pairbus serve`` child process.
- ``resource_manager``: the few calls of Azure's resource manager that the suite's fixtures make.
- ``devtools``: the suite's own test framework (base classes, preparers, credentials), which is not on PyPI.
- ``plugin``: puts these in place inside the suite's pytest process.

``fetch`` gets the suite from its source package; ``run`` runs it and reads its results; ``report`` writes the table.
"""
