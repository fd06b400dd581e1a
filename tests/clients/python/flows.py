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
