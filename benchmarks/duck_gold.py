"""The gold tables as DuckDB makes them of the same silver files: what a build in Spark is measured against.

The same columns by the same rules as `pairbus.pipeline.gold` and `pairbus.pipeline.audit`, written to Parquet.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

OPERATIONS = """
    create table grouped as
    select day, namespace, entity, "primary", target, role, operation, route, outcome, address, on_backlog,
           count(*) operations, sum(billed) billed, sum(bytes) bytes, sum(latency_us) latency_us_sum,
           max(latency_us) latency_us_max
    from silver where operation not in ('transition', 'ledger-open', 'ledger-close', 'ledger-gap') group by all;

    create table operations_daily as
    select * exclude (address, on_backlog),
           case when operation = 'ping' then 'pings'
                when operation in ('receive', 'peek') and on_backlog and outcome = 'empty' then 'idle receives'
                when operation in ('receive', 'peek') and on_backlog then 'diverted messages'
                when operation in ('divert', 'restore', 'resubmit') then 'diverted messages'
                when operation = 'create' and on_backlog then 'creation' end cause,
           role = 'namespace' or not bool_or(role = 'namespace') over (partition by day, namespace)
             or (operation in ('receive', 'peek') and outcome = 'empty') in_bill
    from grouped;
"""
EVIDENCE = """
      max(episode) filter (is_divert) episode, min("at") first_at, max("at") last_at,
      min("at") filter (ok and not own and (is_divert and not from_spool or is_spool)) diverted_at,
      min("at") filter (ok and not own and (is_restore or (is_send and from_spool))) home_at,
      count_if(ok and not own and ((is_send or is_divert) and not from_spool or is_spool)) accepted,
      count_if(ok and not own and is_send) direct,
      count_if(ok and not own and is_divert) diverted,
      count_if(ok and is_spool) spooled,
      count_if(ok and not own and (is_send or is_divert) and from_spool) unspooled,
      count_if(ok and is_restore) restored,
      count_if(ok and not own and on_backlog and operation = 'dead-letter') dead_lettered,
      count_if(ok and on_backlog and operation = 'expire') expired,
      count_if(ok and operation = 'resubmit') resubmitted,
      count_if(ok and not own and on_backlog and operation = 'complete') removed,
      count_if(ok and not own and not on_backlog and settled) received,
      count_if(not own and outcome = 'failed' and (is_send or is_divert or is_restore or is_spool)) failed,
      count_if(outcome = 'unknown' and (is_send or is_divert or is_restore or is_spool)) in_doubt,
      count_if(not own and outcome in ('failed', 'unknown')
               and ((is_send or is_divert) and not from_spool or is_spool)) refused,
      count_if(not own and outcome = 'unknown' and (is_divert and not from_spool or is_spool)) unanswered,
      count_if(not own and (is_restore or ok and (from_spool and (is_send or is_divert)
               or on_backlog and (settled or operation in ('expire', 'resubmit'))))) handled,
      count_if(id_hashed) hashed,
      count_if(own and is_send) namespace_home,
      count_if(own and settled) namespace_received
"""
MESSAGES = f"""
    create view told as
    with marked as (
      select *, outcome = 'ok' ok, role = 'namespace' own, coalesce(route = 'spool', false) from_spool,
             operation in ('send', 'schedule') is_send, operation = 'divert' is_divert, operation = 'spool' is_spool,
             operation = 'restore' is_restore, operation in ('complete', 'dead-letter') settled,
             ok and not on_backlog and settled and contains(target, '/subscriptions/') at_subscription
      from silver
      where message_id is not null and operation in
        ('send', 'schedule', 'divert', 'spool', 'restore', 'dead-letter', 'expire', 'resubmit', 'complete')
        and (role <> 'namespace' or (outcome = 'ok' and not on_backlog)))
    select * replace (if(at_subscription, split_part(target, '/subscriptions/', 1), target) as target),
           if(at_subscription, split_part(target, '/subscriptions/', 2), '') subscription
    from marked;

    create table messages as
    select "primary", target, message_id, subscription, {EVIDENCE}, coalesce(diverted_at, first_at)::date as day
    from told where subscription = '' group by "primary", target, message_id, subscription
    having count_if(not (ok and not on_backlog and not from_spool and (is_send or settled))) > 0;

    insert into messages
    with received_there as (
      select "primary", target, message_id, subscription, {EVIDENCE}
      from told where subscription <> '' and ("primary", target, message_id) in
        (select ("primary", target, message_id) from messages)
      group by "primary", target, message_id, subscription)
    select received_there.*, messages.day
    from received_there join messages using ("primary", target, message_id);
"""
AUDIT = """
    create table audit as
    with most as (select "primary", target, message_id, max(greatest(received, namespace_received)) most,
                         min(first_at) since, max(last_at) until
                  from messages where subscription <> '' group by all),
    own as (select messages.* replace (greatest(received, namespace_received, coalesce(most, 0)) as received,
                                       least(first_at, coalesce(since, first_at)) as first_at,
                                       greatest(last_at, coalesce(until, last_at)) as last_at)
            from messages left join most using ("primary", target, message_id) where subscription = ''),
    told as (select *, (accepted = 0 and unanswered = 0 and handled > 0)::int inferred,
                    greatest(direct + restored, namespace_home) home
             from own),
    known as (select * replace (accepted + inferred as accepted),
                     least(accepted + inferred, greatest(home, received)) delivered
              from told),
    dead as (select * replace (least(accepted - delivered, greatest(0, dead_lettered - resubmitted)) as dead_lettered,
                               greatest(0, expired - greatest(0, resubmitted - dead_lettered)) as expired)
             from known),
    buried as (select * replace (least(accepted - delivered - dead_lettered, expired) as expired) from dead),
    judged as (select *,
                      case when received > 0 then received else home end arrived,
                      accepted - delivered - dead_lettered - expired outstanding,
                      least(outstanding, greatest(0, removed - restored)) lost,
                      outstanding - lost waiting,
                      greatest(0, arrived - greatest(1, accepted)) duplicates
               from buried where diverted > 0 or spooled > 0 or inferred > 0)
    select * exclude (subscription, namespace_home, namespace_received, outstanding, arrived),
           case when lost > 0 then 'lost' when waiting > 0 then 'waiting' when accepted = 0 then 'never accepted'
                when dead_lettered > 0 then 'dead-lettered' when expired > 0 then 'expired'
                when duplicates > 0 then 'duplicated' else 'delivered' end verdict
    from judged;

    create table waiting as
    with waited as (select *, greatest(0, epoch(home_at) - epoch(diverted_at)) as seconds
                    from audit where diverted_at is not null)
    select day, "primary", target, count(seconds) messages, count_if(waiting > 0) still_waiting,
           avg(seconds) mean_seconds,
           quantile_cont(seconds, 0.5) p50_seconds, quantile_cont(seconds, 0.9) p90_seconds,
           quantile_cont(seconds, 0.99) p99_seconds, max(seconds) max_seconds
    from waited group by all;

    create table episode_messages as
    select episode, day, count(*) diverted, count(home_at) home, count_if(waiting > 0) waiting,
           min(diverted_at) first_diverted_at, max(home_at) last_home_at
    from audit where episode is not null group by all;
"""
THE_REST = """
    create table transitions as
    select "primary", target, process, coalesce(episode, 'unknown') episode, n, "at", state_from, state_to, cause, day
    from silver where operation = 'transition';

    create table availability as
    with taken as (
      select day, "primary", target, sum(operations) accepted,
             coalesce(sum(operations) filter (operation in ('send', 'schedule')), 0) accepted_by_primary, 0 refused
      from operations_daily
      where role <> 'namespace' and outcome = 'ok'
        and (operation in ('send', 'schedule') and coalesce(route, 'primary') = 'primary'
             or operation = 'divert' and route = 'backlog' or operation = 'spool')
      group by all
      union all
      select day, "primary", target, 0, 0, count(*) from messages
      where accepted = 0 and refused > 0 group by all)
    select day, "primary", target, sum(accepted) accepted, sum(accepted_by_primary) accepted_by_primary,
           sum(accepted) + sum(refused) offered
    from taken group by all;

    create table bills as
    select namespace, date_trunc('month', day) as month, sum(billed) billed
    from operations_daily where in_bill and namespace <> '' group by all;
"""
TABLES = (
    "operations_daily",
    "messages",
    "audit",
    "waiting",
    "episode_messages",
    "transitions",
    "availability",
    "bills",
)


def make_gold(tables: Path, output: Path, *, threads: int) -> dict[str, list[tuple[object, ...]]]:
    """Make and write the tables; what Spark's tables must agree with."""
    output.mkdir()
    connection = duckdb.connect()
    connection.execute(f"set threads to {threads}")
    source = f"read_parquet('{tables}/silver/*/*/*/*.parquet', hive_partitioning = true)"
    connection.execute(f"create view silver as select * from {source}")
    for script in (OPERATIONS, MESSAGES, AUDIT, THE_REST):
        connection.execute(script)
    for name in TABLES:
        connection.execute(f"copy {name} to '{output / name}.parquet' (format parquet, compression zstd)")
    questions = {
        "operations_daily": "count(*), sum(operations), sum(billed), sum(latency_us_sum), max(latency_us_max)",
        "audit": "count(*), sum(accepted), sum(delivered), sum(waiting), sum(lost), sum(duplicates)",
        "waiting": "count(*), sum(messages), max(p99_seconds), max(max_seconds)",
        "availability": "count(*), sum(offered), sum(accepted), sum(accepted_by_primary)",
    }
    return {name: connection.execute(f"select {what} from {name}").fetchall() for name, what in questions.items()}
