"""The shell around the aio SDK. `_sync` is generated from it."""
