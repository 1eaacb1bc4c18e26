"""PURE. Settings of a Spark that lives for a minute, with tables of some thousand rows, as in the demo and in tests.

Most of its processor time would go into compiling: Spark compiles every plan, which takes much longer than interpreting
it, and Java optimizes code that runs for seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

# A Java that compiles only once reserves 48 MiB for the result. Spark fills that, and then Java interprets the rest.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -XX:-UsePerfData"
SMALL_TABLES: Mapping[str, str] = {
    "spark.driver.defaultJavaOptions": JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
