"""AMQP 1.0, for the embedded namespace and for pumps that carry messages without understanding them.

Pure, no engine needed: `types` (values), `codec` (values to bytes and back) and `sections` (an encoded
message as its parts). The way of the bytes through a connection: `sasl` → `frames` and `numbering` (looking at frames
before the engine does) → `engine` (Proton's, in asyncio) with its `links`, `outcomes` and, at the border to C, `native`
→ whoever fulfils the `contract`: the embedded namespace's server side, or `client` with its `exchange` of requests.
"""
