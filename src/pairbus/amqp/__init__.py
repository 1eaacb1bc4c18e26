"""AMQP 1.0, for the embedded namespace and for clients that carry messages without decoding them.

Values and messages: `types`, `codec` (values to bytes and back), `message` (an encoded message as its sections).
A connection, without IO: `sasl` and `frames` see the bytes before Proton does, `engine` turns them into events, `links`
holds the handles on Proton's objects, `outcomes` the errors and delivery states, `conditions` what errors mean.
With IO: `protocol` runs an engine in asyncio. `client` and `session` are built on it, and so is the server side
(`embedded.amqp`).
"""
