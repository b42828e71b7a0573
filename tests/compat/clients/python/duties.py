"""What the client programs in Python have in common: command line, records, and the duties themselves.

It is the Go package duty in another language; see there for the command line and for what each duty checks. A client
program defines a class with the methods that the duties call here, and passes it to main.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections import Counter, namedtuple

TIME_LIMIT = 80  # seconds
EPOCH = 1_700_000_000_000
PARTITIONS = 4

# time is in milliseconds since 1970, headers a list of (str, bytes).
Record = namedtuple("Record", "partition key value headers time")


class NotApplicable(Exception):
    """The client cannot carry out a duty."""


def records(first, end, partitions=1):
    """Records first to end-1 of the sequence that every program produces, dealt out to partitions in turn."""
    return [
        Record(
            partition=(i - first) % partitions,
            key=None if i % 3 == 0 else b"key-%d" % i,
            value="välue-{}-{}".format(i, "x" * (i % 50)).encode(),
            headers=[("n", b"%d" % i)],
            time=EPOCH + 1000 * i,
        )
        for i in range(first, end)
    ]


def compare(got, want):
    for i, (g, w) in enumerate(zip(got, want)):
        if g != w:
            raise AssertionError(f"record {i} is {g}, want {w}")
    if len(got) != len(want):
        raise AssertionError(f"read {len(got)} records, want {len(want)}")


def compare_sets(got, want):
    """Compares values only, in any order."""
    missing = Counter(r.value for r in want)
    missing.subtract(r.value for r in got)
    for value, n in missing.items():
        if n > 0:
            raise AssertionError(f"record {value} was not read")
        if n < 0:
            raise AssertionError(f"record {value} was read {-n} times too often")


class Duties:
    def __init__(self, client, name, prefix):
        self.client = client
        self.name = name
        self.topic = self.group = prefix + name
        self.deadline = time.monotonic() + TIME_LIMIT

    def wait(self, what, condition):
        """Looks until condition holds; it may do some work, such as polling."""
        while not condition():
            if time.monotonic() > self.deadline:
                raise TimeoutError(f"waiting for {what}")
            time.sleep(0.01)

    def run(self):
        duty = getattr(self, "duty_" + self.name.replace("-", "_"), None)
        if duty is None:
            raise AssertionError("there is no such duty")
        duty()

    def round_trip(self, codec="none", idempotent=False):
        want = records(0, 300)
        self.client.produce(self.topic, want, codec=codec, idempotent=idempotent)
        compare(self.client.consume(self.topic, len(want), deadline=self.deadline), want)

    def duty_roundtrip(self):
        self.round_trip()

    def duty_gzip(self):
        self.round_trip("gzip")

    def duty_snappy(self):
        self.round_trip("snappy")

    def duty_lz4(self):
        self.round_trip("lz4")

    def duty_zstd(self):
        self.round_trip("zstd")

    def duty_idempotent(self):
        self.round_trip(idempotent=True)

    def duty_stream(self):
        self.round_trip()

    def duty_seek_time(self):
        want = records(0, 100)
        self.client.produce(self.topic, want)
        got = self.client.consume(self.topic, 60, from_time=want[40].time - 500, deadline=self.deadline)
        compare(got, want[40:])

    def duty_group(self):
        first = self.client.join(self.group, self.topic)
        self.wait("the first member to have all partitions", lambda: len(first.partitions()) == PARTITIONS)
        second = self.client.join(self.group, self.topic)
        self.wait(
            "the partitions to be split",
            lambda: len(first.partitions()) == PARTITIONS // 2
            and sorted(first.partitions() + second.partitions()) == list(range(PARTITIONS)),
        )
        batch = records(0, 40, PARTITIONS)
        self.client.produce(self.topic, batch)
        self.wait("two members to read all records", lambda: len(first.records() + second.records()) >= len(batch))
        if not first.records() or not second.records():
            raise AssertionError("one member has read all records")
        compare_sets(first.records() + second.records(), batch)
        seen = len(first.records())
        second.close()
        self.wait("the partitions to return", lambda: len(first.partitions()) == PARTITIONS)
        batch = records(40, 80, PARTITIONS)
        self.client.produce(self.topic, batch)
        self.wait("the remaining member to read all records", lambda: len(first.records()) >= seen + len(batch))
        compare_sets(first.records()[seen:], batch)
        first.close()

    def duty_resume(self):
        want = records(0, 100)
        self.client.produce(self.topic, want)
        got = self.client.read_and_commit(self.group, self.topic, 40, deadline=self.deadline)
        got += self.client.read_and_commit(self.group, self.topic, 60, deadline=self.deadline)
        compare(got, want)

    def duty_topics(self):
        admin = self.client.admin()
        admin.create_topic(self.topic, 3, {})
        self.wait("the topic to be listed", lambda: self.topic in admin.list_topics())
        if (n := admin.partitions(self.topic)) != 3:
            raise AssertionError(f"the new topic has {n} partitions, want 3")
        admin.delete_topic(self.topic)
        self.wait("the topic to be gone from the list", lambda: self.topic not in admin.list_topics())
        admin.close()

    def duty_configs(self):
        admin = self.client.admin()
        admin.create_topic(self.topic, 1, {"retention.ms": "3600000"})
        for want in ("3600000", "7200000"):
            value = admin.topic_config(self.topic, "retention.ms")
            if value != want:
                raise AssertionError(f"retention.ms is {value}, want {want}")
            admin.set_topic_config(self.topic, "retention.ms", "7200000")
        admin.close()

    def duty_groups(self):
        admin = self.client.admin()
        self.client.produce(self.topic, records(0, 10))
        member = self.client.join(self.group, self.topic)
        self.wait("the member to read", lambda: len(member.records()) == 10)
        self.described(admin, "Stable", 1)
        self.wait("the group to be listed", lambda: self.group in admin.list_groups())
        member.close()
        self.described(admin, "Empty", 0)
        admin.delete_group(self.group)
        self.wait("the group to be gone from the list", lambda: self.group not in admin.list_groups())
        admin.close()

    def described(self, admin, state, members):
        got = admin.describe_group(self.group)
        if got != (state, members):
            raise AssertionError(f"the group is {got}, want {(state, members)}")


def main(client_class):
    parser = argparse.ArgumentParser()
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--duty", required=True)
    parser.add_argument("--topic-prefix", required=True)
    arguments = parser.parse_args()
    client = client_class(arguments.brokers)
    result, detail = "ok", ""
    try:
        if arguments.duty == "version":
            detail = client.version()
        else:
            Duties(client, arguments.duty, arguments.topic_prefix).run()
    except NotApplicable as reason:
        result, detail = "n/a", str(reason)
    except Exception as error:
        traceback.print_exc()
        result, detail = "fail", f"{type(error).__name__}: {error}"
    print(json.dumps({"duty": arguments.duty, "result": result, "detail": detail}), flush=True)
    sys.stderr.flush()
    sys.stdout.flush()
    # Threads that a failed duty has left behind shall not keep the program alive.
    os._exit(1 if result == "fail" else 0)
