"""Carries out the duties of the compatibility run with aiokafka."""

import asyncio
import logging
import threading
import time

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

import duties

logging.basicConfig(level=logging.WARNING)

# The duties are written for blocking clients, so the event loop has a thread of its own.
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()


def wait(coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(duties.TIME_LIMIT)


def convert(message):
    return duties.Record(
        partition=message.partition,
        key=message.key,
        value=message.value,
        headers=list(message.headers),
        time=message.timestamp,
    )


class Client:
    def __init__(self, brokers):
        self.brokers = brokers

    def version(self):
        return aiokafka.__version__

    def produce(self, topic, records, codec="none", idempotent=False):
        wait(self._produce(topic, records, codec, idempotent))

    async def _produce(self, topic, records, codec, idempotent):
        producer = AIOKafkaProducer(
            bootstrap_servers=self.brokers,
            compression_type=None if codec == "none" else codec,
            acks="all",
            enable_idempotence=idempotent,
            linger_ms=50,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic, value=r.value, key=r.key, headers=r.headers, partition=r.partition, timestamp_ms=r.time
                )
                for r in records
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    def consumer(self, *topics, **settings):
        return AIOKafkaConsumer(
            *topics,
            bootstrap_servers=self.brokers,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=500,
            **settings,
        )

    async def _read(self, consumer, n, deadline):
        got = []
        while len(got) < n:
            if time.monotonic() > deadline:
                raise TimeoutError(f"read {len(got)} of {n} records")
            for messages in (await consumer.getmany(timeout_ms=200, max_records=n - len(got))).values():
                got += [convert(message) for message in messages]
        return got

    def consume(self, topic, n, from_time=None, deadline=None):
        return wait(self._consume(topic, n, from_time, deadline))

    async def _consume(self, topic, n, from_time, deadline):
        consumer = self.consumer()
        await consumer.start()
        try:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            if from_time is None:
                await consumer.seek_to_beginning(partition)
            else:
                found = await consumer.offsets_for_times({partition: from_time})
                consumer.seek(partition, found[partition].offset)
            return await self._read(consumer, n, deadline)
        finally:
            await consumer.stop()

    def read_and_commit(self, group, topic, n, deadline):
        return wait(self._read_and_commit(group, topic, n, deadline))

    async def _read_and_commit(self, group, topic, n, deadline):
        consumer = self.consumer(topic, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            got = await self._read(consumer, n, deadline)
            await consumer.commit()
            return got
        finally:
            await consumer.stop()

    def join(self, group, topic):
        return wait(self._join(group, topic))

    async def _join(self, group, topic):
        member = Member(self.consumer(topic, group_id=group))
        member.task = asyncio.create_task(member.run())
        return member

    def admin(self):
        return Admin(self.brokers)


class Member:
    def __init__(self, consumer):
        self.consumer = consumer
        self.read = []
        self.error = None
        self.closing = asyncio.Event()
        self.ended = threading.Event()

    async def run(self):
        try:
            await self.consumer.start()
            try:
                while not self.closing.is_set():
                    for messages in (await self.consumer.getmany(timeout_ms=100)).values():
                        self.read += [convert(message) for message in messages]
            finally:
                await self.consumer.stop()
        except Exception as error:  # it is for the thread that waits
            self.error = error
        finally:
            self.ended.set()

    def partitions(self):
        if self.error is not None:
            raise self.error
        return sorted(p.partition for p in self.consumer.assignment())

    def records(self):
        return list(self.read)

    def close(self):
        loop.call_soon_threadsafe(self.closing.set)
        if not self.ended.wait(duties.TIME_LIMIT):
            raise TimeoutError("the member does not stop")
        if self.error is not None:
            raise self.error


class Admin:
    def __init__(self, brokers):
        self.brokers = brokers
        wait(self._start())

    async def _start(self):
        self.client = AIOKafkaAdminClient(bootstrap_servers=self.brokers)
        await self.client.start()

    def create_topic(self, topic, partitions, configs):
        self._check(wait(self.client.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])).topic_errors)

    def _check(self, results):
        """Raises the error of results, a list of (name, error code, ...)."""
        for result in results:
            if result[1] != 0:
                raise aiokafka.errors.for_code(result[1])(result)

    def list_topics(self):
        return wait(self.client.list_topics())

    def partitions(self, topic):
        return len(wait(self.client.describe_topics([topic]))[0]["partitions"])

    def delete_topic(self, topic):
        self._check(wait(self.client.delete_topics([topic])).topic_error_codes)

    def topic_config(self, topic, name):
        responses = wait(self.client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        for resource in responses[0].resources:
            for entry in resource[4]:
                if entry[0] == name:
                    return entry[1]
        raise KeyError(name)

    def set_topic_config(self, topic, name, value):
        responses = wait(self.client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})]))
        for response in responses:
            for resource in response.resources:
                if resource[0] != 0:
                    raise aiokafka.errors.for_code(resource[0])(resource)

    def list_groups(self):
        return [group[0] for group in wait(self.client.list_consumer_groups())]

    def describe_group(self, group):
        described = wait(self.client.describe_consumer_groups([group]))[0].groups[0]
        if described[0] != 0:
            raise aiokafka.errors.for_code(described[0])(group)
        return described[2], len(described[5])

    def delete_group(self, group):
        if not hasattr(self.client, "delete_consumer_groups"):
            raise duties.NotApplicable("it lists and describes groups, but cannot delete them")
        wait(self.client.delete_consumer_groups([group]))

    def close(self):
        wait(self.client.close())


duties.main(Client)
