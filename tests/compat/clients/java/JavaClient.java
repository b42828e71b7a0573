import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Carries out the duties of the compatibility run with the client of Apache Kafka, in any version since 2.8.
 *
 * <p>It is the Go package duty in another language; see there for the command line and for what each duty checks.
 */
public final class JavaClient {
    private static final long EPOCH = 1_700_000_000_000L;
    private static final int PARTITIONS = 4;
    private static final long TIME_LIMIT_MS = 80_000;

    private final String brokers;
    private final String topic;
    private final String group;
    private final long deadline = System.currentTimeMillis() + TIME_LIMIT_MS;

    private JavaClient(String brokers, String name) {
        this.brokers = brokers;
        this.topic = name;
        this.group = name;
    }

    public static void main(String[] arguments) {
        Map<String, String> flags = new HashMap<>();
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            flags.put(arguments[i], arguments[i + 1]);
        }
        String duty = flags.get("--duty");
        String result = "ok";
        String detail = "";
        try {
            if (duty.equals("version")) {
                detail = version();
            } else {
                new JavaClient(flags.get("--brokers"), flags.get("--topic-prefix") + duty).run(duty);
            }
        } catch (Throwable error) {
            error.printStackTrace();
            result = "fail";
            detail = error.toString();
        }
        System.out.printf("{\"duty\": \"%s\", \"result\": \"%s\", \"detail\": \"%s\"}%n", duty, result, escape(detail));
        System.out.flush();
        Runtime.getRuntime().halt(result.equals("ok") ? 0 : 1); // whatever a failed duty has left running
    }

    private static String version() throws IOException {
        Properties properties = new Properties();
        try (InputStream file = KafkaProducer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            properties.load(file);
        }
        return properties.getProperty("version");
    }

    private static String escape(String text) {
        return text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ").replace("\t", " ");
    }

    private void run(String duty) throws Exception {
        switch (duty) {
            case "roundtrip":
            case "stream":
                roundTrip("none", false);
                break;
            case "gzip":
            case "snappy":
            case "lz4":
            case "zstd":
                roundTrip(duty, false);
                break;
            case "idempotent":
                roundTrip("none", true);
                break;
            case "seek-time":
                seekTime();
                break;
            case "group":
                twoMembers();
                break;
            case "resume":
                resume();
                break;
            case "topics":
                topics();
                break;
            case "configs":
                configs();
                break;
            case "groups":
                groups();
                break;
            default:
                throw new IllegalArgumentException("there is no such duty");
        }
    }

    // Records.

    private static final class Rec {
        final int partition;
        final String key;
        final String value;
        final String header;
        final long time;

        Rec(int partition, String key, String value, String header, long time) {
            this.partition = partition;
            this.key = key;
            this.value = value;
            this.header = header;
            this.time = time;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Rec && toString().equals(other.toString());
        }

        @Override
        public int hashCode() {
            return toString().hashCode();
        }

        @Override
        public String toString() {
            return partition + " " + key + " " + value + " " + header + " " + time;
        }
    }

    private static List<Rec> records(int first, int end, int spread) {
        List<Rec> all = new ArrayList<>();
        for (int i = first; i < end; i++) {
            char[] padding = new char[i % 50];
            Arrays.fill(padding, 'x');
            String key = i % 3 == 0 ? null : "key-" + i;
            all.add(new Rec((i - first) % spread, key, "v\u00e4lue-" + i + "-" + new String(padding), "n=" + i, EPOCH + 1000L * i));
        }
        return all;
    }

    private static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    private static Rec convert(ConsumerRecord<byte[], byte[]> record) {
        List<String> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(header.key() + "=" + text(header.value()));
        }
        return new Rec(record.partition(), text(record.key()), text(record.value()), String.join(",", headers), record.timestamp());
    }

    private static void compare(List<Rec> got, List<Rec> want) {
        for (int i = 0; i < Math.min(got.size(), want.size()); i++) {
            check(got.get(i).equals(want.get(i)), "record " + i + " is " + got.get(i) + ", want " + want.get(i));
        }
        check(got.size() == want.size(), "read " + got.size() + " records, want " + want.size());
    }

    private static void compareSets(List<Rec> got, List<Rec> want) {
        List<String> values = got.stream().map(r -> r.value).sorted().collect(Collectors.toList());
        List<String> wanted = want.stream().map(r -> r.value).sorted().collect(Collectors.toList());
        check(values.equals(wanted), "read " + values + ", want " + wanted);
    }

    private static void check(boolean condition, String message) {
        if (!condition) {
            throw new AssertionError(message);
        }
    }

    private void await(String what, Callable<Boolean> condition) throws Exception {
        while (!condition.call()) {
            check(System.currentTimeMillis() < deadline, "time is up: waiting for " + what);
            Thread.sleep(20);
        }
    }

    // Producing and consuming.

    private void produce(List<Rec> records, String codec, boolean idempotent) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", brokers);
        settings.put("acks", "all");
        settings.put("compression.type", codec);
        settings.put("enable.idempotence", idempotent);
        settings.put("linger.ms", 50);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (Rec r : records) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, r.partition, r.time, bytes(r.key), bytes(r.value));
                String[] header = r.header.split("=");
                record.headers().add(new RecordHeader(header[0], bytes(header[1])));
                sent.add(producer.send(record));
            }
        }
        for (Future<RecordMetadata> future : sent) {
            future.get();
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer(Object... more) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", brokers);
        settings.put("auto.offset.reset", "earliest");
        settings.put("heartbeat.interval.ms", 500);
        for (int i = 0; i < more.length; i += 2) {
            settings.put((String) more[i], more[i + 1]);
        }
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private List<Rec> read(KafkaConsumer<byte[], byte[]> consumer, int n) {
        List<Rec> got = new ArrayList<>();
        while (got.size() < n) {
            check(System.currentTimeMillis() < deadline, "time is up: read " + got.size() + " of " + n + " records");
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                got.add(convert(record));
            }
        }
        return got;
    }

    private void roundTrip(String codec, boolean idempotent) throws Exception {
        List<Rec> want = records(0, 300, 1);
        produce(want, codec, idempotent);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(Collections.singleton(partition));
            consumer.seekToBeginning(Collections.singleton(partition));
            compare(read(consumer, want.size()), want);
        }
    }

    private void seekTime() throws Exception {
        List<Rec> want = records(0, 100, 1);
        produce(want, "none", false);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(Collections.singleton(partition));
            long time = want.get(40).time - 500;
            consumer.seek(partition, consumer.offsetsForTimes(Collections.singletonMap(partition, time)).get(partition).offset());
            compare(read(consumer, 60), want.subList(40, 100));
        }
    }

    // Groups.

    /** A group consumer that is polled on a thread of its own until it is closed. */
    private final class Member implements ConsumerRebalanceListener {
        private final KafkaConsumer<byte[], byte[]> consumer = consumer("group.id", group);
        private final Thread thread = new Thread(this::poll, "member");
        private final TreeSet<Integer> partitions = new TreeSet<>();
        private final List<Rec> records = new ArrayList<>();
        private volatile boolean closing;
        private Throwable error;

        Member() {
            consumer.subscribe(Collections.singleton(topic), this);
            thread.setDaemon(true);
            thread.start();
        }

        private void poll() {
            try {
                while (!closing) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                        synchronized (this) {
                            records.add(convert(record));
                        }
                    }
                }
                consumer.close();
            } catch (Throwable e) {
                synchronized (this) {
                    error = e;
                }
            }
        }

        @Override
        public synchronized void onPartitionsAssigned(Collection<TopicPartition> assigned) {
            assigned.forEach(p -> partitions.add(p.partition()));
        }

        @Override
        public synchronized void onPartitionsRevoked(Collection<TopicPartition> revoked) {
            revoked.forEach(p -> partitions.remove(p.partition()));
        }

        synchronized List<Integer> partitions() {
            check(error == null, "the member failed: " + error);
            return new ArrayList<>(partitions);
        }

        synchronized List<Rec> records() {
            check(error == null, "the member failed: " + error);
            return new ArrayList<>(records);
        }

        void close() throws InterruptedException {
            closing = true;
            thread.join();
            check(error == null, "the member failed: " + error);
        }
    }

    private static <T> List<T> concat(List<T> a, List<T> b) {
        List<T> all = new ArrayList<>(a);
        all.addAll(b);
        return all;
    }

    private void twoMembers() throws Exception {
        Member first = new Member();
        await("the first member to have all partitions", () -> first.partitions().size() == PARTITIONS);
        Member second = new Member();
        await("the partitions to be split", () -> {
            List<Integer> all = concat(first.partitions(), second.partitions());
            Collections.sort(all);
            return first.partitions().size() == PARTITIONS / 2 && all.equals(Arrays.asList(0, 1, 2, 3));
        });
        List<Rec> batch = records(0, 40, PARTITIONS);
        produce(batch, "none", false);
        await("two members to read all records", () -> first.records().size() + second.records().size() >= 40);
        check(!first.records().isEmpty() && !second.records().isEmpty(), "one member has read all records");
        compareSets(concat(first.records(), second.records()), batch);
        int seen = first.records().size();
        second.close();
        await("the partitions to return", () -> first.partitions().size() == PARTITIONS);
        List<Rec> more = records(40, 80, PARTITIONS);
        produce(more, "none", false);
        await("the remaining member to read all records", () -> first.records().size() >= seen + more.size());
        compareSets(first.records().subList(seen, first.records().size()), more);
        first.close();
    }

    private List<Rec> readAndCommit(int n) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("group.id", group, "enable.auto.commit", false, "max.poll.records", 20)) {
            consumer.subscribe(Collections.singleton(topic));
            List<Rec> got = read(consumer, n);
            consumer.commitSync();
            return got;
        }
    }

    private void resume() throws Exception {
        List<Rec> want = records(0, 100, 1);
        produce(want, "none", false);
        compare(concat(readAndCommit(40), readAndCommit(60)), want);
    }

    // Administration.

    private Admin admin() {
        return Admin.create(Collections.singletonMap("bootstrap.servers", brokers));
    }

    private void create(Admin admin, int partitions, Map<String, String> configs) throws Exception {
        NewTopic created = new NewTopic(topic, Optional.of(partitions), Optional.empty()).configs(configs);
        admin.createTopics(Collections.singleton(created)).all().get();
    }

    /** The method of the result that newer versions have, or else the one that older versions have. */
    private int partitionCount(Admin admin) throws Exception {
        Object result = admin.describeTopics(Collections.singleton(topic));
        Object future;
        try {
            future = result.getClass().getMethod("allTopicNames").invoke(result);
        } catch (NoSuchMethodException e) {
            future = result.getClass().getMethod("all").invoke(result);
        }
        Map<?, ?> described = (Map<?, ?>) ((Future<?>) future).get();
        return ((org.apache.kafka.clients.admin.TopicDescription) described.get(topic)).partitions().size();
    }

    private void topics() throws Exception {
        try (Admin admin = admin()) {
            create(admin, 3, Collections.emptyMap());
            await("the topic to be listed", () -> admin.listTopics().names().get().contains(topic));
            int n = partitionCount(admin);
            check(n == 3, "the new topic has " + n + " partitions, want 3");
            admin.deleteTopics(Collections.singleton(topic)).all().get();
            await("the topic to be gone from the list", () -> !admin.listTopics().names().get().contains(topic));
        }
    }

    private void configs() throws Exception {
        String name = "retention.ms";
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = admin()) {
            create(admin, 1, Collections.singletonMap(name, "3600000"));
            for (String want : Arrays.asList("3600000", "7200000")) {
                String value = admin.describeConfigs(Collections.singleton(resource)).all().get().get(resource).get(name).value();
                check(Objects.equals(value, want), name + " is " + value + ", want " + want);
                AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, "7200000"), AlterConfigOp.OpType.SET);
                admin.incrementalAlterConfigs(Collections.singletonMap(resource, Collections.singleton(change))).all().get();
            }
        }
    }

    private boolean listed(Admin admin) throws ExecutionException, InterruptedException {
        return admin.listConsumerGroups().all().get().stream().anyMatch(g -> g.groupId().equals(group));
    }

    private void described(Admin admin, String state, int members) throws Exception {
        ConsumerGroupDescription got = admin.describeConsumerGroups(Collections.singleton(group)).all().get().get(group);
        check(got.state().toString().equals(state) && got.members().size() == members,
            "the group is " + got.state() + " with " + got.members().size() + " members, want " + state + " with " + members);
    }

    private void groups() throws Exception {
        try (Admin admin = admin()) {
            produce(records(0, 10, 1), "none", false);
            Member member = new Member();
            await("the member to read", () -> member.records().size() == 10);
            described(admin, "Stable", 1);
            await("the group to be listed", () -> listed(admin));
            member.close();
            described(admin, "Empty", 0);
            admin.deleteConsumerGroups(Collections.singleton(group)).all().get();
            await("the group to be gone from the list", () -> !listed(admin));
        }
    }
}
