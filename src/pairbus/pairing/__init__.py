"""The shell around the SDK: options, pairing, the paired client and its senders.

The walk: `_aio/client.py` pairs and hands out senders, `_aio/sender.py` sends, `_aio/entity.py` watches,
`_aio/backlog.py` diverts, `_aio/spooling.py` keeps what nobody takes. `_sync` is the same for threads, generated
by `scripts/generate_sync.py`. What both share and needs no waiting stands beside them.
"""
