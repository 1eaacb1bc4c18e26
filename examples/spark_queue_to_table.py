"""Use a queue in Spark: write to it, read it, and stream it into a table, which empties it.

Runs on a local namespace of its own. For a namespace in Azure, set CONTOSO to its connection string before Spark
starts, and remove the first two lines of `main`.
"""

from __future__ import annotations

import os
import tempfile

from pairbus.pipeline.session import local_session
from pairbus.testing import EmbeddedNamespace


def main() -> None:
    with EmbeddedNamespace("contoso", process=True) as contoso, tempfile.TemporaryDirectory() as folder:
        os.environ["CONTOSO"] = contoso.connection_string
        with contoso.admin() as admin:
            admin.create_queue("orders")
        spark = local_session("example", cores=2)
        bus = {"connectionStringEnv": "CONTOSO", "queue": "orders"}

        rows = spark.range(1000).selectExpr(
            "concat('order ', id) body",
            "if(id % 10 = 0, 'express', 'standard') subject",
            "map('amount', cast(id * 1.5 as variant)) application_properties",
        )
        rows.write.format("servicebus").options(**bus).mode("append").save()

        orders = spark.read.format("servicebus").options(**bus).load()
        orders.groupBy("subject").count().orderBy("subject").show()

        stream = spark.readStream.format("servicebus").options(**bus).load().writeStream
        query = (
            stream.format("parquet")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{folder}/table")
        )
        query.awaitTermination()
        table = spark.read.parquet(f"{folder}/table")
        print("in the table:", table.count(), "left in the queue:", orders.count())
        spark.stop()


if __name__ == "__main__":
    main()
