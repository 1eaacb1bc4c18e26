"""The pairing for asyncio. `_sync` is generated from it."""
