"""Carries out the duties of the compatibility run with confluent-kafka, which brings a librdkafka of its own."""

import time

import confluent_kafka
from confluent_kafka import Consumer, ConsumerGroupState, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

import duties
import members


def convert(message):
    return duties.Record(
        partition=message.partition(),
        key=message.key(),
        value=message.value(),
        headers=message.headers() or [],
        time=message.timestamp()[1],
    )


class Client:
    def __init__(self, brokers):
        self.base = {"bootstrap.servers": brokers}

    def version(self):
        return f"{confluent_kafka.version()} (librdkafka {confluent_kafka.libversion()[0]})"

    def produce(self, topic, records, codec="none", idempotent=False):
        producer = Producer(
            self.base | {"compression.type": codec, "enable.idempotence": idempotent, "acks": "all", "linger.ms": 50}
        )
        errors = []
        for r in records:
            producer.produce(
                topic,
                value=r.value,
                key=r.key,
                partition=r.partition,
                headers=r.headers,
                timestamp=r.time,
                on_delivery=lambda error, _: error and errors.append(error),
            )
        if left := producer.flush(60):
            raise TimeoutError(f"{left} records were not sent")
        if errors:
            raise confluent_kafka.KafkaException(errors[0])

    def consumer(self, **settings):
        return Consumer(
            self.base
            | {"auto.offset.reset": "earliest", "heartbeat.interval.ms": 500, "allow.auto.create.topics": True}
            | {name.replace("_", "."): value for name, value in settings.items()}
        )

    def read(self, consumer, n, deadline):
        got = []
        while len(got) < n:
            if time.monotonic() > deadline:
                raise TimeoutError(f"read {len(got)} of {n} records")
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error():
                raise confluent_kafka.KafkaException(message.error())
            got.append(convert(message))
        return got

    def consume(self, topic, n, from_time=None, deadline=None):
        consumer = self.consumer(group_id="unused")
        try:
            start = TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)
            if from_time is not None:
                start = consumer.offsets_for_times([TopicPartition(topic, 0, from_time)], timeout=20)[0]
            consumer.assign([start])
            return self.read(consumer, n, deadline)
        finally:
            consumer.close()

    def read_and_commit(self, group, topic, n, deadline):
        consumer = self.consumer(group_id=group, enable_auto_commit=False)
        try:
            consumer.subscribe([topic])
            got = self.read(consumer, n, deadline)
            consumer.commit(asynchronous=False)
            return got
        finally:
            consumer.close()

    def join(self, group, topic):
        return Member(self.consumer(group_id=group), topic).start()

    def admin(self):
        return Admin(AdminClient(self.base))


class Member(members.PolledMember):
    def __init__(self, consumer, topic):
        super().__init__()
        self.consumer = consumer
        consumer.subscribe(
            [topic],
            on_assign=lambda _, assigned: self.assigned(p.partition for p in assigned),
            on_revoke=lambda _, revoked: self.revoked(p.partition for p in revoked),
        )

    def poll(self):
        message = self.consumer.poll(0.1)
        if message is None:
            return []
        if message.error():
            raise confluent_kafka.KafkaException(message.error())
        return [convert(message)]

    def shut_down(self):
        self.consumer.close()


class Admin:
    def __init__(self, admin):
        self.client = admin

    def create_topic(self, topic, partitions, configs):
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=configs)
        self.client.create_topics([new])[topic].result(20)

    def list_topics(self):
        return list(self.client.list_topics(timeout=20).topics)

    def partitions(self, topic):
        return len(self.client.list_topics(topic, timeout=20).topics[topic].partitions)

    def delete_topic(self, topic):
        self.client.delete_topics([topic])[topic].result(20)

    def topic_config(self, topic, name):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return self.client.describe_configs([resource])[resource].result(20)[name].value

    def set_topic_config(self, topic, name, value):
        change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        self.client.incremental_alter_configs([resource])[resource].result(20)

    def list_groups(self):
        listing = self.client.list_consumer_groups(request_timeout=20).result()
        if listing.errors:
            raise confluent_kafka.KafkaException(listing.errors[0])
        return [group.group_id for group in listing.valid]

    def describe_group(self, group):
        described = self.client.describe_consumer_groups([group], request_timeout=20)[group].result()
        names = {ConsumerGroupState.STABLE: "Stable", ConsumerGroupState.EMPTY: "Empty"}
        return names.get(described.state, str(described.state)), len(described.members)

    def delete_group(self, group):
        self.client.delete_consumer_groups([group], request_timeout=20)[group].result()

    def close(self):
        pass


duties.main(Client)
