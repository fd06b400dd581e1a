"""What a user of the Python client does: push, consume with handlers, ack, nack, two groups, start at a timestamp.

    flows.py <broker url> <client version> json|binary

`binary`: with binary push, push compression and framed pop. Exits with 0 after `all flows passed`. Works with clients 1.3.0 and 2.6.0.
"""

import asyncio
import importlib.metadata
import sys
import uuid

from queen import Queen

LIMIT_S = 20  # A flow that takes longer hangs.


def unique(name):
    return f"py-{name}-{uuid.uuid4().hex[:8]}"


async def push_n(queen, queue, partition, n):
    results = await queen.queue(queue).partition(partition).push([{"data": {"n": i}} for i in range(n)])
    assert [r["status"] for r in results] == ["queued"] * n, results


def group(queen, queue, name):
    return queen.queue(queue).group(name).subscription_mode("all")


def consumer(queen, queue, name, limit):
    return group(queen, queue, name).limit(limit).timeout_millis(500).idle_millis(10_000)


async def push_and_duplicates(queen):
    queue, told = unique("push"), []

    async def on_success(items):
        told.append(("success", len(items)))

    async def on_duplicate(items, error):
        told.append(("duplicate", len(items)))

    item = [{"transactionId": "once", "data": {"n": 1}}]
    await queen.queue(queue).push(item).on_success(on_success)
    await queen.queue(queue).push(item).on_success(on_success).on_duplicate(on_duplicate)
    assert told == [("success", 1), ("duplicate", 1)], told


async def payloads_come_back(queen):
    queue = unique("payload")
    payloads = [None, 0, "", [], {}, {"nested": {"list": [1, 2.5, None, "é🐝"]}}, 2**53 + 1, "x" * 300_000]
    await queen.queue(queue).push([{"data": p} for p in payloads])
    got = await queen.queue(queue).batch(50).pop()
    assert [m["data"] for m in got] == payloads


async def consume_with_a_handler(queen):
    queue, seen = unique("consume"), []

    async def handler(message):
        seen.append(message["data"]["n"])

    await push_n(queen, queue, "p", 12)
    await consumer(queen, queue, "g", 12).batch(5).each().consume(handler)
    assert seen == list(range(12)), seen
    assert await group(queen, queue, "g").wait(False).pop() == [], "all was acked"


async def consume_batches_over_partitions(queen):
    queue, seen = unique("batch"), []
    done = asyncio.Event()

    async def handler(messages):
        messages = messages if isinstance(messages, list) else [messages]
        seen.extend((m["partition"], m["data"]["n"]) for m in messages)
        if len(seen) >= 60:
            done.set()

    for p in range(6):
        await push_n(queen, queue, f"p{p}", 10)
    builder = group(queen, queue, "g").batch(20).partitions(4).concurrency(2).timeout_millis(500)
    await builder.consume(handler, signal=done)
    assert sorted(seen) == sorted((f"p{p}", n) for p in range(6) for n in range(10)), "each once"


async def a_consumer_the_broker_sizes(queen):
    queue, seen = unique("auto"), []

    async def handler(messages):
        seen.extend(m["data"]["n"] for m in (messages if isinstance(messages, list) else [messages]))

    await push_n(queen, queue, "p", 30)
    await consumer(queen, queue, "g", 30).consume(handler)
    assert sorted(seen) == list(range(30)), seen


async def a_handler_that_fails_ends_in_the_dead_letters(queen):
    queue, seen = unique("fail"), []

    async def handler(message):
        seen.append(message["data"]["n"])
        if message["data"]["n"] == 1:
            raise RuntimeError("no such account")

    await queen.queue(queue).config({"retryLimit": 1}).create()
    await push_n(queen, queue, "p", 3)
    await consumer(queen, queue, "g", 4).batch(1).consume(handler)
    assert seen == [0, 1, 1, 2], seen
    detail = await queen.admin.get_queue(queue)
    assert detail["totals"]["deadLetter"] == 1, detail


async def pop_ack_nack_and_renew(queen):
    queue = unique("pop")
    await push_n(queen, queue, "p", 4)

    async def pop():
        return await group(queen, queue, "g").batch(10).pop()

    first = await pop()
    assert [m["data"]["n"] for m in first] == [0, 1, 2, 3]
    renewed = await queen.renew(first)
    assert renewed[0]["success"] and renewed[0]["newExpiresAt"], renewed
    context = {"group": "g"}
    assert (await queen.ack(first[0], True, context))["success"]
    assert (await queen.ack(first[1], False, {"group": "g", "error": "later"}))["success"]
    refused = await queen.ack(first[2], True, context)
    assert not refused["success"] and "lease" in refused["error"], refused
    second = await pop()
    assert [m["data"]["n"] for m in second] == [1, 2, 3]
    assert (await queen.ack(second[0], "retry", context))["success"]
    third = await pop()
    result = await queen.ack(third, True, context)
    assert result["success"] and all(r["success"] for r in result["results"]), result
    assert await group(queen, queue, "g").wait(False).pop() == []


async def two_groups_and_start_modes(queen):
    queue = unique("groups")

    def late():
        return queen.queue(queue).group("late").subscription_mode("new").wait(False).batch(10)

    await push_n(queen, queue, "p", 5)
    assert await late().pop() == []
    for name in ["one", "two"]:
        seen = []

        async def handler(messages):
            seen.extend(m["data"]["n"] for m in (messages if isinstance(messages, list) else [messages]))

        await consumer(queen, queue, name, 5).batch(2).consume(handler)
        assert seen == [0, 1, 2, 3, 4], (name, seen)
    await push_n(queen, queue, "p", 2)
    assert len(await late().pop()) == 2


async def start_at_a_timestamp(queen):
    queue = unique("from")
    for _ in range(4):
        await push_n(queen, queue, "p", 1)
    everything = await queen.queue(queue).batch(10).pop()
    assert len(everything) == 4
    start = everything[2]["createdAt"]
    got = await queen.queue(queue).group("from").subscription_from(start).batch(10).pop()
    assert [m["id"] for m in got] == [m["id"] for m in everything[2:]]


async def a_parked_consumer_gets_a_late_message(queen):
    queue, seen = unique("late"), []

    async def handler(message):
        seen.append(message)

    consuming = asyncio.create_task(consumer(queen, queue, "g", 1).batch(1).timeout_millis(10_000).consume(handler)._execute())
    await asyncio.sleep(0.3)
    await push_n(queen, queue, "p", 1)
    await asyncio.wait_for(consuming, 5)
    assert len(seen) == 1


async def buffered_push(queen):
    queue = unique("buffer")
    for n in range(20):
        await queen.queue(queue).partition("p").buffer({"message_count": 100, "time_millis": 60_000}).push([{"data": {"n": n}}])
    await queen.flush_all_buffers()
    got = await queen.queue(queue).batch(50).pop()
    assert [m["data"]["n"] for m in got] == list(range(20))


async def configure_and_delete(queen):
    queue = unique("admin")
    created = await queen.queue(queue).namespace("py").task("t").config({"leaseTime": 45, "retryLimit": 5}).create()
    assert created["configured"] and created["options"]["leaseTime"] == 45, created
    await push_n(queen, queue, "p", 1)
    assert (await queen.queue(queue).delete())["existed"]


async def a_transaction_hands_on_or_does_nothing(queen):
    source, target = unique("from"), unique("to")
    context = {"consumer_group": "g"}
    await push_n(queen, source, "p", 3)
    held = await group(queen, source, "g").batch(10).pop()
    done = await queen.transaction().ack(held[0], "completed", context).queue(target).push([{"data": {"stage": 2}}]).commit()
    assert done["success"] and [r["type"] for r in done["results"]] == ["ack", "push"], done
    assert [m["data"] for m in await queen.queue(target).wait(False).pop()] == [{"stage": 2}]
    assert (await queen.transaction().ack(held[1], "failed", context).commit())["success"]
    try:
        await queen.transaction().ack(held[2], "completed", context).queue(target).push([{"data": 3}]).commit()
    except Exception as refused:
        assert "rolled back" in str(refused), refused
    else:
        raise AssertionError("a stale lease commits nothing")
    assert await queen.queue(target).wait(False).pop() == []
    assert len(await group(queen, source, "g").batch(10).pop()) == 2


async def dead_letters_are_read_retried_and_deleted(queen):
    queue = unique("dlq")
    await queen.queue(queue).config({"retryLimit": 0}).create()
    await push_n(queen, queue, "p", 2)
    for _ in range(2):
        held = await group(queen, queue, "g").batch(1).pop()
        assert (await queen.ack(held[0], False, {"group": "g", "error": "broken"}))["success"]
    page = await queen.queue(queue).dlq("g").limit(10).get()
    assert page["total"] == 2 and [m["errorMessage"] for m in page["messages"]] == ["broken"] * 2, page
    second, first = page["messages"]
    assert [first["data"], second["data"]] == [{"n": 0}, {"n": 1}], "newest failure first"
    address = (first["partitionId"], first["transactionId"])
    assert (await queen.admin.get_message(*address))["status"] == "dead_letter"
    assert (await queen.admin.retry_message(*address))["result"] == "moved"
    assert (await queen.admin.delete_message(second["partitionId"], second["transactionId"]))["success"]
    assert (await queen.queue(queue).dlq().get())["total"] == 0
    assert [m["data"] for m in await group(queen, queue, "g").batch(10).pop()] == [{"n": 0}]


async def groups_are_listed_moved_and_deleted(queen):
    queue, name = unique("groups"), unique("g")
    await push_n(queen, queue, "p", 3)

    async def pop():
        return await group(queen, queue, name).wait(False).batch(10).pop()

    assert (await queen.ack(await pop(), True, {"group": name}))["success"]
    (listed,) = [g for g in await queen.admin.list_consumer_groups() if g["name"] == name]
    assert (listed["queueName"], listed["totalLag"], listed["subscriptionMode"]) == (queue, 0, "all"), listed
    detail = await queen.admin.get_consumer_group(name)
    assert detail[queue]["partitions"][0]["totalConsumed"] == 3, detail
    assert isinstance(await queen.admin.get_lagging_consumers(3600), list)
    sought = await queen.admin.seek_consumer_group(name, queue, {"timestamp": "2001-01-01T00:00:00Z"})
    assert sought["partitionsUpdated"] == 1, sought
    assert len(await pop()) == 3
    assert (await queen.update_consumer_group_timestamp(name, "2026-01-01T00:00:00Z"))["rowsUpdated"] == 1
    deleted = await queen.admin.delete_consumer_group_for_queue(name, queue, True)
    assert (deleted["deletedPartitions"], deleted["metadataDeleted"]) == (1, True), deleted
    assert len(await pop()) == 3, "it registers afresh"
    assert (await queen.delete_consumer_group(name, True))["deletedPartitions"] == 1
    assert await queen.admin.get_consumer_group(name) == {}


async def listings_tell_what_is_there(queen):
    namespace = unique("ns")
    queue = f"{namespace}.mail.eu"
    await push_n(queen, queue, "p", 4)

    def named(rows, key, want):
        (row,) = [r for r in rows if r[key] == want]
        return row

    spaces = await queen.admin.get_namespaces()
    assert named(spaces["namespaces"], "namespace", namespace)["messages"] == {"total": 4, "pending": 4}
    assert named((await queen.admin.get_tasks())["tasks"], "task", "mail")
    assert named((await queen.admin.list_queues())["queues"], "name", queue)["segments"]["messages"] == 4
    assert (await queen.admin.get_queue(queue))["totals"]["pending"] == 4
    depth = await queen.admin.get_queue_depth(queue, "nobody")
    assert (depth["pending"], depth["partitionsReady"]) == (4, 1), depth
    assert (await queen.admin.get_partitions(queue=queue))["partitions"][0]["pending"] == 4
    assert len((await queen.admin.list_messages(queue=queue, limit=3))["messages"]) == 3
    assert (await queen.admin.get_overview())["queues"] > 0
    assert "messages" in await queen.admin.get_status()
    assert (await queen.admin.get_queue_stats(queue=queue))["queues"]
    assert (await queen.admin.get_queue_detail(queue))["queue"]["name"] == queue
    assert await queen.admin.health()


async def a_conflating_consumer_gets_the_last_value(queen):
    queue, seen = unique("last"), []

    async def handler(messages):
        seen.extend((m["partition"], m["data"]["n"]) for m in (messages if isinstance(messages, list) else [messages]))

    for partition in ["a", "b"]:
        await push_n(queen, queue, partition, 10)
    await consumer(queen, queue, "ui", 2).conflation().consume(handler)
    assert sorted(seen) == [("a", 9), ("b", 9)], seen
    assert await group(queen, queue, "ui").conflation().wait(False).pop() == [], "an empty answer says it conflates too"
    depth = await queen.admin.get_queue_depth(queue, "ui")
    assert (depth["conflation"], depth["pending"]) == (True, 0), depth


async def a_transaction_acks_and_pushes(queen):
    source, target = unique("from"), unique("to")
    await push_n(queen, source, "p", 2)
    got = await group(queen, source, "g").batch(10).pop()
    bundle = queen.transaction().queue(target).partition("a").push([{"data": {"n": 0}}, {"data": {"n": 1}}])
    bundle = bundle.ack(got, "completed", {"consumer_group": "g"})
    done = await bundle.queue(target).partition("b").push({"transactionId": "once", "data": {"n": 2}}).commit()
    assert done["success"], done
    assert await group(queen, source, "g").wait(False).pop() == []
    stored = await queen.queue(target).partition("a").batch(10).pop()
    assert [m["data"]["n"] for m in stored] == [0, 1], stored
    refused = None
    try:
        bundle = queen.transaction().queue(target).partition("a").push({"data": 3})
        refused = await bundle.queue(target).partition("b").push({"transactionId": "once", "data": 4}).commit()
    except Exception as error:
        refused = str(error)
    assert "QDUP" in str(refused), refused
    stored = await queen.queue(target).partition("a").wait(False).batch(10).group("all").subscription_mode("all").pop()
    assert len(stored) == 2, stored


async def forms_meet_on_one_queue(queen, other):
    queue = unique("meet")

    def items(numbers):
        return [{"transactionId": f"k{n}", "data": {"n": n, "text": 'é🐝 "x"'}} for n in numbers]

    told = []

    async def on_success(items):
        told.append(len(items))

    async def on_duplicate(items, error):
        told.append(-len(items))

    await queen.queue(queue).push(items(range(40)))
    await other.queue(queue).push(items(range(20, 60))).on_success(on_success).on_duplicate(on_duplicate)
    assert sorted(told) == [-20, 20], told
    for client in [queen, other]:
        seen, name = [], unique("meet")

        async def handler(messages):
            seen.extend(m["data"]["n"] for m in (messages if isinstance(messages, list) else [messages]))

        await consumer(client, queue, name, 60).batch(7).consume(handler)
        assert seen == list(range(60)), seen
    first = await group(queen, queue, "shared").batch(30).pop()
    assert (await queen.ack(first, True, {"group": "shared"}))["success"]
    second = await group(other, queue, "shared").batch(30).pop()
    assert [m["transactionId"] for m in second] == [f"k{n}" for n in range(30, 60)]
    assert (await queen.ack(second, True, {"group": "shared"}))["success"], "a lease is a lease"


FLOWS = [
    push_and_duplicates,
    payloads_come_back,
    consume_with_a_handler,
    consume_batches_over_partitions,
    a_consumer_the_broker_sizes,
    a_handler_that_fails_ends_in_the_dead_letters,
    pop_ack_nack_and_renew,
    two_groups_and_start_modes,
    start_at_a_timestamp,
    a_parked_consumer_gets_a_late_message,
    buffered_push,
    configure_and_delete,
    a_transaction_hands_on_or_does_nothing,
    dead_letters_are_read_retried_and_deleted,
    groups_are_listed_moved_and_deleted,
    listings_tell_what_is_there,
    a_conflating_consumer_gets_the_last_value,
    a_transaction_acks_and_pushes,
]


async def main(url, version, forms):
    assert importlib.metadata.version("queen-mq") == version
    options = {"binary_push": True, "push_compression": True, "framed_pop": True} if forms == "binary" else {}
    async with Queen(url, **options) as queen, Queen(url) as json:
        for flow in FLOWS:
            await asyncio.wait_for(flow(queen), LIMIT_S)
            print(f"{flow.__name__} ok", flush=True)
        if forms == "binary":
            for pair in [(queen, json), (json, queen)]:
                await asyncio.wait_for(forms_meet_on_one_queue(*pair), LIMIT_S)
            print("forms_meet_on_one_queue ok", flush=True)
    print(f"queen-mq {version}: all flows passed")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
