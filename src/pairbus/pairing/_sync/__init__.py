"""The shell around the sync SDK, generated from `_aio` except for `runtime.py`."""
