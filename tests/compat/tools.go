package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

const toolsVersion = "4.4.0"

// tools are the command line tools of Apache Kafka, started by their main classes as its shell scripts do.
type tools struct {
	env   *environment
	files map[string]string // that commands read, by name
	ran   map[string]bool   // tasks by name
}

func kafkaTools() *tools {
	return &tools{
		ran: make(map[string]bool),
		env: javaEnvironment("kafka-tools",
			"org.apache.kafka:kafka-tools:"+toolsVersion, "org.apache.kafka:kafka_2.13:"+toolsVersion, "org.slf4j:slf4j-simple:1.7.36"),
		files: map[string]string{
			"delete-records.json": `{"version": 1, "partitions": [{"topic": "compat-tools-records", "partition": 0, "offset": 7}]}`,
			"reassign.json":       `{"version": 1, "partitions": [{"topic": "compat-tools-topics", "partition": 0, "replicas": [1]}]}`,
		},
	}
}

// call is one command: the class of a tool below org.apache.kafka.tools, its arguments (the address of the broker is put
// before them), its input, and what its output has to contain.
type call struct {
	class     string
	arguments string // separated by spaces
	stdin     string
	want      []string
	// fails is set if the tool has to fail, as it does with a broker of Kafka's that is set up in the same way.
	fails bool
}

const (
	topicTool  = "TopicCommand"
	configTool = "ConfigCommand"
	groupTool  = "consumer.group.ConsumerGroupCommand"
	produce    = "ConsoleProducer"
	consume    = "consumer.ConsoleConsumer"
)

// toolTask is what is done with one tool.
type toolTask struct {
	name string
	// needs is the task that makes what this one works on.
	needs string
	calls []call
}

// toolTasks are the tasks by the names of the shell scripts (without kafka- and .sh), in the order in which they run.
var toolTasks = []toolTask{
	{"broker-api-versions", "", []call{
		{class: "BrokerApiVersionsCommand", want: []string{"Produce(0): 0 to 13 [usable: 13]", "Fetch(1): 4 to 18", "ConsumerGroupHeartbeat(68)"}},
	}},
	{"cluster", "", []call{
		{class: "ClusterTool cluster-id", want: []string{"Cluster ID: "}},
		{class: "ClusterTool list-endpoints", want: []string{"unfenced", "broker"}},
	}},
	{"topics", "", []call{
		{class: topicTool, arguments: "--create --topic compat-tools-topics --partitions 3 --replication-factor 1 --config retention.ms=3600000", want: []string{"Created topic compat-tools-topics."}},
		{class: topicTool, arguments: "--create --topic compat-tools-topics", want: []string{"already exists"}, fails: true},
		{class: topicTool, arguments: "--create --if-not-exists --topic compat-tools-topics"},
		{class: topicTool, arguments: "--list", want: []string{"compat-tools-topics"}},
		{class: topicTool, arguments: "--describe --topic compat-tools-topics", want: []string{"PartitionCount: 3", "ReplicationFactor: 1", "retention.ms=3600000", "Partition: 2\tLeader: 1\tReplicas: 1\tIsr: 1"}},
		{class: topicTool, arguments: "--alter --topic compat-tools-topics --partitions 5"},
		{class: topicTool, arguments: "--describe --topic compat-tools-topics", want: []string{"PartitionCount: 5"}},
	}},
	{"configs", "topics", []call{
		{class: configTool, arguments: "--alter --entity-type topics --entity-name compat-tools-topics --add-config max.message.bytes=2000000,retention.bytes=1000", want: []string{"Completed updating config for topic compat-tools-topics."}},
		{class: configTool, arguments: "--alter --entity-type topics --entity-name compat-tools-topics --delete-config retention.bytes", want: []string{"Completed updating"}},
		{class: configTool, arguments: "--describe --entity-type topics --entity-name compat-tools-topics", want: []string{"max.message.bytes=2000000", "retention.ms=3600000"}},
		{class: configTool, arguments: "--describe --all --entity-type topics --entity-name compat-tools-topics", want: []string{"retention.bytes=-1", "cleanup.policy=delete"}},
		{class: configTool, arguments: "--describe --all --entity-type brokers --entity-name 1", want: []string{"auto.create.topics.enable=true"}},
	}},
	{"console-producer and -consumer", "", []call{
		{class: produce, arguments: "--topic compat-tools-records --reader-property parse.key=true --reader-property key.separator=: --compression-codec zstd", stdin: lines("key-%d:value-%d", 20)},
		{class: consume, arguments: "--topic compat-tools-records --from-beginning --max-messages 20 --formatter-property print.key=true --formatter-property print.offset=true", want: []string{"Offset:0\tkey-0\tvalue-0\n", "Offset:19\tkey-19\tvalue-19\n"}},
		{class: produce, arguments: "--topic compat/tools/stream", stdin: lines("on a stream %d", 3)},
		{class: consume, arguments: "--topic compat/tools/stream --from-beginning --max-messages 3", want: []string{"on a stream 0\non a stream 1\non a stream 2\n"}},
	}},
	{"get-offsets", "console-producer and -consumer", []call{
		{class: "GetOffsetShell", arguments: "--topic compat-tools-records", want: []string{"compat-tools-records:0:20"}},
		{class: "GetOffsetShell", arguments: "--topic compat-tools-records --time earliest", want: []string{"compat-tools-records:0:0"}},
		{class: produce, arguments: "--topic compat-tools-times", stdin: lines("earlier", 1)},
		{class: produce, arguments: "--topic compat-tools-times", stdin: lines("later", 1)},
		{class: "GetOffsetShell", arguments: "--topic compat-tools-times --time max-timestamp", want: []string{"compat-tools-times:0:1"}},
		{class: "GetOffsetShell", arguments: "--topic compat-tools-records --time 1000", want: []string{"compat-tools-records:0:0"}},
	}},
	{"delete-records", "console-producer and -consumer", []call{
		{class: "DeleteRecordsCommand", arguments: "--offset-json-file delete-records.json", want: []string{"partition: compat-tools-records-0\tlow_watermark: 7"}},
		{class: "GetOffsetShell", arguments: "--topic compat-tools-records --time earliest", want: []string{"compat-tools-records:0:7"}},
	}},
	{"log-dirs", "console-producer and -consumer", []call{
		{class: "LogDirsCommand", arguments: "--describe --topic-list compat-tools-records", want: []string{`"partition":"compat-tools-records-0"`, `"error":null`}},
	}},
	{"consumer-groups", "delete-records", []call{
		{class: consume, arguments: "--topic compat-tools-records --group compat-tools-group --from-beginning --max-messages 13", want: []string{"value-7\n", "value-19\n"}},
		{class: groupTool, arguments: "--list", want: []string{"compat-tools-group"}},
		{class: groupTool, arguments: "--describe --group compat-tools-group", want: []string{"no active members", "compat-tools-records 0          20              20              0"}},
		{class: groupTool, arguments: "--describe --group compat-tools-group --state", want: []string{"Empty"}},
		{class: groupTool, arguments: "--reset-offsets --to-offset 10 --group compat-tools-group --topic compat-tools-records --execute", want: []string{"compat-tools-records", "10"}},
		{class: groupTool, arguments: "--describe --group compat-tools-group", want: []string{"compat-tools-records 0          10              20              10"}},
		{class: consume, arguments: "--topic compat-tools-records --group compat-tools-group --max-messages 10", want: []string{"value-10\n", "value-19\n"}},
		{class: groupTool, arguments: "--delete-offsets --group compat-tools-group --topic compat-tools-records", want: []string{"Successful"}},
		{class: groupTool, arguments: "--delete --group compat-tools-group", want: []string{"was successful"}},
	}},
	{"groups", "console-producer and -consumer", []call{
		{class: consume, arguments: "--topic compat-tools-records --group compat-tools-listed --from-beginning --max-messages 1"},
		{class: "GroupsCommand --list", want: []string{"compat-tools-listed", "Classic", "consumer"}},
	}},
	{"features", "", []call{
		{class: "FeatureCommand", arguments: "describe", want: []string{"Feature: metadata.version", "SupportedMaxVersion"}},
	}},
	{"reassign-partitions", "topics", []call{
		{class: "reassign.ReassignPartitionsCommand", arguments: "--list", want: []string{"No partition reassignments found."}},
		{class: "reassign.ReassignPartitionsCommand", arguments: "--execute --reassignment-json-file reassign.json", want: []string{"Successfully started"}},
		{class: "reassign.ReassignPartitionsCommand", arguments: "--verify --reassignment-json-file reassign.json", want: []string{"is completed"}},
	}},
	{"leader-election", "topics", []call{
		{class: "LeaderElectionCommand", arguments: "--election-type preferred --all-topic-partitions"},
	}},
	{"metadata-quorum", "", []call{
		{class: "MetadataQuorumCommand", arguments: "describe --status", want: []string{"LeaderId:               1"}},
		{class: "MetadataQuorumCommand", arguments: "describe --replication", want: []string{"Leader"}},
	}},
	{"acls", "", []call{
		{class: "AclCommand", arguments: "--list", want: []string{"SecurityDisabledException"}, fails: true},
	}},
	{"client-metrics", "", []call{
		{class: "ClientMetricsCommand", arguments: "--list"},
	}},
	{"transactions", "console-producer and -consumer", []call{
		{class: "TransactionsCommand", arguments: "describe-producers --topic compat-tools-records --partition 0", want: []string{"ProducerId"}},
	}},
	{"producer-perf-test", "", []call{
		{class: "ProducerPerformance", arguments: "--topic compat-tools-perf --num-records 20000 --record-size 100 --throughput -1 --command-property compression.type=lz4", want: []string{"20000 records sent"}},
	}},
	{"consumer-perf-test", "producer-perf-test", []call{
		{class: "ConsumerPerformance", arguments: "--topic compat-tools-perf --num-records 20000 --timeout 30000", want: []string{", 1.9073, ", ", 20000, "}},
	}},
	{"e2e-latency", "", []call{
		{class: "EndToEndLatency", arguments: "--topic compat-tools-latency --num-records 50 --producer-acks all --record-size 100", want: []string{"Avg latency:"}},
	}},
	{"verifiable-producer", "", []call{
		{class: "VerifiableProducer", arguments: "--topic compat-tools-verifiable --max-messages 50 --acks -1", want: []string{`"sent":50,"acked":50`}},
	}},
	{"verifiable-consumer", "verifiable-producer", []call{
		{class: "VerifiableConsumer", arguments: "--topic compat-tools-verifiable --group-id compat-tools-verifiable --max-messages 50 --reset-policy earliest", want: []string{`"name":"records_consumed"`, `"maxOffset":49`, `"success":true`}},
	}},
	{"streams-application-reset", "producer-perf-test", []call{
		{class: "StreamsResetter", arguments: "--application-id compat-tools-app --input-topics compat-tools-perf --force", want: []string{"Topic: compat-tools-perf Partition: 0 Offset: 0"}},
	}},
	{"topics --delete", "topics", []call{
		{class: topicTool, arguments: "--delete --topic compat-tools-topics"},
		{class: topicTool, arguments: "--describe --topic compat-tools-topics", want: []string{"does not exist"}, fails: true},
	}},
}

// lines repeats a line with the number of the line in it.
func lines(format string, n int) string {
	var text strings.Builder
	for i := range n {
		text.WriteString(strings.ReplaceAll(format, "%d", fmt.Sprint(i)) + "\n")
	}
	return text.String()
}

func (t *tools) title() string { return "kafka-tools" }

func (t *tools) tasks() []string {
	var names []string
	for _, task := range toolTasks {
		names = append(names, task.name)
	}
	return names
}

func (t *tools) install(ctx context.Context, in *installer) error {
	if err := in.install(ctx, t.env); err != nil {
		return err
	}
	for name, text := range t.files {
		if err := os.WriteFile(filepath.Join(t.env.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (t *tools) version(context.Context) (string, error) { return toolsVersion, nil }

func (t *tools) run(ctx context.Context, addr, name string) outcome {
	i := slices.IndexFunc(toolTasks, func(task toolTask) bool { return task.name == name })
	task := toolTasks[i]
	if task.needs != "" && !t.ran[task.needs] {
		if o := t.run(ctx, addr, task.needs); o.result != duty.OK {
			return o
		}
	}
	t.ran[name] = true
	for _, c := range task.calls {
		if text, err := t.call(ctx, addr, c); err != nil {
			return failed(fmt.Errorf("%s %s: %w", c.class, c.arguments, err), text)
		}
	}
	return outcome{result: duty.OK}
}

// call runs a tool and returns what it printed.
func (t *tools) call(ctx context.Context, addr string, c call) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, dutyTimeout)
	defer cancel()
	class, subcommand, _ := strings.Cut(c.class, " ")
	arguments := append(slices.Clone(javaFlags), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", "lib/*", "org.apache.kafka.tools."+class)
	arguments = append(arguments, strings.Fields(subcommand)...)
	arguments = append(arguments, "--bootstrap-server", addr)
	arguments = append(arguments, strings.Fields(c.arguments)...)
	cmd := command(ctx, t.env.dir, "java", arguments...)
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Stdin = strings.NewReader(c.stdin)
	err := cmd.Run()
	text := out.String()
	for _, want := range c.want {
		if !strings.Contains(text, want) {
			return text, errors.Join(fmt.Errorf("the output does not have %q", want), err, ctx.Err())
		}
	}
	if ctx.Err() != nil {
		return text, ctx.Err()
	}
	if c.fails != (err != nil) {
		return text, fmt.Errorf("exit: %v; it should fail: %v", err, c.fails)
	}
	return text, nil
}

func (t *tools) section(rep *report) string {
	var page strings.Builder
	page.WriteString("\n## The command line tools of Apache Kafka\n\nVersion " + rep.version + ", each with what it has to print.\n")
	writeOutcomes(&page, rep, "tool")
	return page.String()
}
