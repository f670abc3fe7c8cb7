"""The least permissions for administering: one function for each purpose of `permissions.PURPOSES`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jetstream import jsapi, objects
from spark_jetstream.admin import api_subjects
from spark_jetstream.permission_lines import Lines, Names, Permission


def account(names: Names) -> Lines:
    yield Permission(names.api(api_subjects.ACCOUNT_INFO), "account.info, tiers, server")


def look(names: Names) -> Lines:
    yield from _look_at_streams(names)
    yield Permission(names.api(api_subjects.CONSUMER_NAMES), "consumers.names")
    yield Permission(names.api(api_subjects.CONSUMER_LIST), "consumers.infos, lag")
    yield Permission(names.api(api_subjects.CONSUMER_INFO), "consumers.load, replicas, plan")
    yield Permission(names.api(api_subjects.MESSAGE_GET), "lag with ages")


def _look_at_streams(names: Names) -> Lines:
    yield Permission(names.api(api_subjects.STREAM_NAMES), "streams.names")
    yield Permission(names.api(api_subjects.STREAM_LIST), "streams.infos")
    yield Permission(names.api(api_subjects.STREAM_INFO), "streams.load, subjects, replicas, origins, plan")


def streams(names: Names) -> Lines:
    yield from _look_at_streams(names)
    yield Permission(names.api(api_subjects.STREAM_CREATE), "streams.create, load_or_create, copy")
    yield Permission(names.api(api_subjects.STREAM_UPDATE), "streams.update, seal")
    yield Permission(names.api(api_subjects.STREAM_PURGE), "streams.purge")
    yield Permission(names.api(api_subjects.STREAM_DELETE), "streams.delete")
    yield Permission(names.api(api_subjects.STREAM_STEP_DOWN), "streams.step_down", "cluster")
    yield Permission(names.api(api_subjects.STREAM_PEER_REMOVE), "streams.remove_peer", "cluster")


def consumers(names: Names) -> Lines:
    yield Permission(names.api(api_subjects.CONSUMER_NAMES), "consumers.names")
    yield Permission(names.api(api_subjects.CONSUMER_LIST), "consumers.infos")
    yield Permission(names.api(api_subjects.CONSUMER_INFO), "consumers.load, replicas, plan, next")
    yield Permission(names.api(api_subjects.CONSUMER_CREATE), "consumers.create without a name")
    yield Permission(names.api(api_subjects.CONSUMER_CREATE_NAMED), "consumers.create, load_or_create, update")
    yield Permission(names.api(api_subjects.CONSUMER_CREATE_FILTERED), "the same, with filter_subject")
    yield Permission(names.api(api_subjects.CONSUMER_CREATE_DURABLE), "consumers.create with durable_form")
    yield Permission(names.api(api_subjects.CONSUMER_PAUSE), "consumers.pause, resume")
    yield Permission(names.api(api_subjects.CONSUMER_RESET), "consumers.reset")
    yield Permission(names.api(api_subjects.CONSUMER_UNPIN), "consumers.unpin")
    yield Permission(names.api(api_subjects.CONSUMER_DELETE), "consumers.delete")
    yield Permission(names.api(api_subjects.CONSUMER_STEP_DOWN), "consumers.step_down", "cluster")
    yield Permission(names.api(api_subjects.CONSUMER_NEXT), "consumers.next")
    yield Permission(f"$JS.ACK.{names.stream}.>", "consumers.next acknowledges")


def messages(names: Names) -> Lines:
    yield Permission(names.api(api_subjects.STREAM_INFO), "messages.read")
    yield Permission(names.api(api_subjects.MESSAGE_GET), "messages.get, last, next, since; read one by one")
    yield Permission(names.api(api_subjects.DIRECT_GET), "messages.read, last_of_each; get, next, since with direct")
    yield Permission(names.api(api_subjects.DIRECT_GET_LAST), "messages.last with direct")
    yield Permission(names.api(api_subjects.MESSAGE_DELETE), "messages.delete, erase")


def backup(names: Names) -> Lines:
    yield Permission(jsapi.stream_snapshot(names.prefix, names.stream), "begin")
    yield Permission(f"$JS.SNAPSHOT.ACK.{names.stream}.>", "each chunk came")


def restore(names: Names) -> Lines:
    yield Permission(names.api(api_subjects.STREAM_NAMES), "whether another stream has the subjects")
    yield Permission(jsapi.stream_restore(names.prefix, names.stream), "begin")
    yield Permission(f"$JS.SNAPSHOT.RESTORE.{names.stream}.*", "each chunk")
    broken = "a restore that fails"
    yield Permission(names.api(api_subjects.STREAM_INFO), "what is left of it", broken)
    yield Permission(names.api(api_subjects.STREAM_DELETE), "remove that", broken)


def _bucket(names: Names) -> Lines:
    """What making, changing and looking at the stream of a bucket takes."""
    yield Permission(names.api(api_subjects.STREAM_NAMES), "names")
    yield Permission(names.api(api_subjects.STREAM_LIST), "infos")
    yield Permission(names.api(api_subjects.STREAM_INFO), "load, status, and how the bucket is set up")
    yield Permission(names.api(api_subjects.STREAM_CREATE), "create, load_or_create")
    yield Permission(names.api(api_subjects.STREAM_UPDATE), "update")
    yield Permission(names.api(api_subjects.STREAM_DELETE), "delete")


def _reading(names: Names, filters: Sequence[tuple[str, str]]) -> Lines:
    """What reading through consumers takes; `filters` are (filter, what it is for) pairs, "" for none or several."""
    for subject, why in filters:
        yield Permission(jsapi.consumer_create(names.prefix, names.stream, "*", (subject,) if subject else ()), why)
    yield Permission(names.api(api_subjects.CONSUMER_NEXT), "what they deliver")
    idle = "consumers stay until they have been idle for 30 seconds"
    yield Permission(names.api(api_subjects.CONSUMER_DELETE), "when it is read", without=idle)


def kv(names: Names) -> Lines:
    bucket = names.of(f"KV_{names.bucket}", None)
    keys = f"$KV.{names.bucket}.>"
    yield from _bucket(bucket)
    yield Permission(bucket.api(api_subjects.MESSAGE_GET), "get; history and watch of replicas")
    yield Permission(bucket.api(api_subjects.DIRECT_GET), "get with a revision and direct")
    yield Permission(bucket.api(api_subjects.DIRECT_GET_LAST, subject=keys), "get with direct")
    yield from _reading(bucket, [(keys, "keys, entries, history, watch"), ("", "the same with several filters")])
    yield Permission(names.data(keys), "put, create, update, delete, purge, revert")
    yield Permission(bucket.api(api_subjects.STREAM_PURGE), "purge_deletes")


def object_store(names: Names) -> Lines:
    bucket = names.of(objects.stream_name(names.bucket), None)
    metas, chunks = objects.meta_filter(names.bucket), objects.chunk_subject(names.bucket, "*")
    yield from _bucket(bucket)
    yield Permission(bucket.api(api_subjects.MESSAGE_GET), "info, what is replaced; watch of replicas")
    yield from _reading(bucket, [(metas, "list, watch"), (chunks, "get, get_file")])
    yield Permission(metas.removesuffix(">") + "*", "put, delete, update_meta, link")
    yield Permission(chunks, "put, put_file")
    yield Permission(bucket.api(api_subjects.STREAM_PURGE), "remove chunks of what was replaced or deleted")


def events(names: Names) -> Lines:
    if names.stream == "*":
        subjects = ["ADVISORY.>", "METRIC.>"]
    else:
        subjects = [f"ADVISORY.STREAM.*.{names.stream}"]
        subjects += [f"{kind}.CONSUMER.*.{names.stream}.*" for kind in ("ADVISORY", "METRIC")]
    for subject in subjects:
        yield Permission(f"$JS.EVENT.{subject}", "events.watch", kind="subscribe")
