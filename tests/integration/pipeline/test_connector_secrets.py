"""A connection string reaches the executors and nothing else: no plan, progress, log, file or page shows its key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.support.raw import flood

from pairbus.testing import EmbeddedNamespace

PROGRAM = """
    import json, os, sys, urllib.request
    from contextlib import suppress
    import psutil
    from pairbus.pipeline.session import local_session
    (folder,) = sys.argv[1:]
    spark = local_session(
        cores=2,
        ui=True,
        settings={
            "spark.ui.port": "0",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{folder}/events",
            "spark.eventLog.compress": "false",
            "spark.local.dir": f"{folder}/local",
        },
    )
    shown = []
    # No registration: Spark finds the format by itself.
    for name, value in (("connectionString", os.environ["CONTOSO"]), ("connectionStringEnv", "CONTOSO")):
        bus = {name: value, "queue": "orders"}
        frame = spark.read.format("servicebus").options(**bus).load()
        shown += [str(frame._jdf.queryExecution().toString()), repr(frame)]
        assert frame.count() == 50
        frame.write.format("servicebus").options(**{**bus, "queue": "copies"}).mode("append").save()
        try:
            spark.read.format("servicebus").options(**{**bus, "queue": "nowhere"}).load().count()
        except Exception as error:
            shown.append(str(error))
    query = (
        spark.readStream.format("servicebus").options(**bus).load()
        .writeStream.format("servicebus").option(name, value).option("queue", "copies")
        .option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    )
    query.awaitTermination()
    shown += [str(one.json) for one in query.recentProgress]
    page = spark.sparkContext.uiWebUrl
    application = f"{page}/api/v1/applications/{spark.sparkContext.applicationId}"
    for path in (f"{application}/environment", f"{application}/sql?details=true&length=100", f"{application}/jobs",
                 f"{application}/stages", f"{page}/environment/", f"{page}/SQL/"):
        shown.append(urllib.request.urlopen(path).read().decode())
    # Everyone on the machine sees command lines.
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            shown.append(" ".join(one.cmdline()))
    assert any("org.apache.spark" in text for text in shown)
    # Every file that is there while Spark still runs counts too.
    key = os.environ["CONTOSO"].partition("SharedAccessKey=")[2].partition(";")[0].encode()
    found = [os.path.join(top, one) for top, _, names in os.walk(folder) for one in names
             if key in open(os.path.join(top, one), "rb").read()]
    print(json.dumps([shown, found]))
"""


@pytest.mark.timeout(600)
def test_the_key_is_shown_nowhere(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    with EmbeddedNamespace("contoso", process=True) as namespace:
        with namespace.admin() as admin:
            for name in ("orders", "copies"):
                admin.create_queue(name)
        flood(namespace, "orders", 50)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)],
            env={**os.environ, "CONTOSO": namespace.connection_string},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        key = namespace.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]
        with namespace.admin() as admin:
            assert admin.get_queue_runtime_properties("copies").active_message_count == 150
    shown, files = json.loads(done.stdout.splitlines()[-1])
    assert len(shown) > 12
    assert not [text[:200] for text in shown if key in text]
    assert files == []
    assert key not in done.stderr
    logged = [path for path in (tmp_path / "events").rglob("*") if path.is_file()]
    assert logged
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
