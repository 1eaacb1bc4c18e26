"""The pairing for threads, generated from `_aio` except for `runtime.py`."""
