"""Leaving Spark at once, for a command that is interrupted.

A Java process that sees its Python go shuts down in order, and complains on standard error about what it was doing. Who
pressed Ctrl-C asked for neither.
"""

from __future__ import annotations

import sys


def kill_spark() -> None:
    """Ends the Java process of this Python process, also while its session is still being made; what it kept in
    `spark.local.dir` stays. The session cannot be used any more. Nothing happens if there is none.
    """
    pyspark = sys.modules.get("pyspark")
    gateway = getattr(getattr(pyspark, "SparkContext", None), "_gateway", None)
    # Without a gateway Java may be starting; then it has nothing to complain about yet, and ends with this process.
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
        process.wait()
