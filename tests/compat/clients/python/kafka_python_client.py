"""Carries out the duties of the compatibility run with kafka-python, in its versions 2.0.2 and 3."""

import logging
import time

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic

import duties
import members

OLD = kafka.__version__.startswith("2.0.")

logging.basicConfig(level=logging.WARNING)


def convert(message):
    return duties.Record(
        partition=message.partition,
        key=message.key,
        value=message.value,
        headers=[(name, bytes(value)) for name, value in message.headers],
        time=message.timestamp,
    )


class Client:
    def __init__(self, brokers):
        self.brokers = brokers

    def version(self):
        return kafka.__version__

    def produce(self, topic, records, codec="none", idempotent=False):
        if "/" in topic and not OLD:
            raise duties.NotApplicable("it refuses topic names with a slash")
        if idempotent and OLD:
            raise duties.NotApplicable("it has no idempotent producer")
        settings = {} if OLD else {"enable_idempotence": idempotent}
        producer = KafkaProducer(
            bootstrap_servers=self.brokers,
            compression_type=None if codec == "none" else codec,
            acks="all",
            linger_ms=50,
            **settings,
        )
        sent = [
            producer.send(
                topic, value=r.value, key=r.key, headers=r.headers, partition=r.partition, timestamp_ms=r.time
            )
            for r in records
        ]
        producer.flush(60)
        for future in sent:
            future.get(20)
        producer.close()

    def consumer(self, **settings):
        return KafkaConsumer(
            bootstrap_servers=self.brokers, auto_offset_reset="earliest", heartbeat_interval_ms=500, **settings
        )

    def read(self, consumer, n, deadline):
        got = []
        while len(got) < n:
            if time.monotonic() > deadline:
                raise TimeoutError(f"read {len(got)} of {n} records")
            for messages in consumer.poll(200, max_records=n - len(got)).values():
                got += [convert(message) for message in messages]
        return got

    def consume(self, topic, n, from_time=None, deadline=None):
        consumer = self.consumer(group_id=None)
        try:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            if from_time is None:
                consumer.seek_to_beginning(partition)
            else:
                consumer.seek(partition, consumer.offsets_for_times({partition: from_time})[partition].offset)
            return self.read(consumer, n, deadline)
        finally:
            consumer.close()

    def read_and_commit(self, group, topic, n, deadline):
        consumer = self.consumer(group_id=group, enable_auto_commit=False)
        try:
            consumer.subscribe([topic])
            got = self.read(consumer, n, deadline)
            consumer.commit()
            return got
        finally:
            consumer.close()

    def join(self, group, topic):
        return Member(self.consumer(group_id=group), topic).start()

    def admin(self):
        return Admin(KafkaAdminClient(bootstrap_servers=self.brokers))


class Member(members.PolledMember, kafka.ConsumerRebalanceListener):
    def __init__(self, consumer, topic):
        super().__init__()
        self.consumer = consumer
        consumer.subscribe([topic], listener=self)

    def on_partitions_assigned(self, assigned):
        self.assigned(p.partition for p in assigned)

    def on_partitions_revoked(self, revoked):
        self.revoked(p.partition for p in revoked)

    def poll(self):
        got = []
        for messages in self.consumer.poll(100).values():
            got += [convert(message) for message in messages]
        return got

    def shut_down(self):
        self.consumer.close()


class Admin:
    """The administration client, which version 3 has rewritten."""

    def __init__(self, admin):
        self.client = admin

    def create_topic(self, topic, partitions, configs):
        self.client.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])

    def list_topics(self):
        return self.client.list_topics()

    def partitions(self, topic):
        return len(self.client.describe_topics([topic])[0]["partitions"])

    def delete_topic(self, topic):
        self.client.delete_topics([topic])

    def topic_config(self, topic, name):
        described = self.client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        if not OLD:
            return described["topic"][topic][name]["value"]
        for resource in described[0].resources:
            for entry in resource[4]:
                if entry[0] == name:
                    return entry[1]
        raise KeyError(name)

    def set_topic_config(self, topic, name, value):
        self.client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})])

    def list_groups(self):
        if OLD:
            return [group[0] for group in self.client.list_consumer_groups()]
        return [group["group_id"] for group in self.client.list_groups()]

    def describe_group(self, group):
        if OLD:
            described = self.client.describe_consumer_groups([group])[0]
            return described.state, len(described.members)
        described = self.client.describe_groups([group])[group]
        if described["error"]:
            raise RuntimeError(described["error"])
        return described["group_state"], len(described["members"])

    def delete_group(self, group):
        if OLD:
            error = self.client.delete_consumer_groups([group])[0][1]
            if error is not kafka.errors.NoError:
                raise error(group)
        elif (result := self.client.delete_groups([group])[group]) != "OK":
            raise RuntimeError(result)

    def close(self):
        self.client.close()


duties.main(Client)
