"""What a process tells about itself while it runs: small private files that a dashboard on the same machine reads.

Off unless a folder is named, by the option `state_dir` or the environment variable `PAIRBUS_STATE_DIR`.
"""

from pairbus.publishing.publisher import ENVIRONMENT_VARIABLE, Publisher, RequestRefusedError, join

__all__ = ["ENVIRONMENT_VARIABLE", "Publisher", "RequestRefusedError", "join"]
