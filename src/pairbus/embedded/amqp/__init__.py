"""The AMQP side of the embedded namespace.

`connection` accepts a client's links, `links` are those to entities, `management` those that take requests, and
`operations` are the requests themselves.
"""
