"""The published state of a running process: small private files that a dashboard on the same machine reads.

Off unless the option `state_dir` or the environment variable `PAIRBUS_STATE_DIR` names a folder.
"""

from pairbus.publishing.publisher import ENVIRONMENT_VARIABLE, Publisher, RequestRefusedError, join

__all__ = ["ENVIRONMENT_VARIABLE", "Publisher", "RequestRefusedError", "join"]
