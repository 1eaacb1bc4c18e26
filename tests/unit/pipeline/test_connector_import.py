"""What `pairbus.pipeline` offers, with Spark and without."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pairbus.pipeline

WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
import pairbus.pipeline
try:
    from pairbus.pipeline import {name}
except ModuleNotFoundError as error:
    print(error)
"""


@pytest.mark.parametrize("name", pairbus.pipeline.__all__)
def test_without_spark_one_sentence_says_what_to_install(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_SPARK.format(name=name)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"pairbus.pipeline.{name} needs the package 'pyspark', which is not installed: run pip install "
        "'pairbus[spark]'.\n",
        "",
    )


def test_the_names_are_loaded_when_they_are_asked_for() -> None:
    from pairbus.pipeline import Access, ServiceBusDataSource, run_spark_syphon

    assert ServiceBusDataSource.name() == "servicebus"
    assert callable(run_spark_syphon)
    assert "Key" not in repr(Access(None, None, "SharedAccessKey=Key"))
    loaded = "import sys, pairbus.pipeline; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pairbus.pipeline.nothing  # noqa: B018
