package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/brookletmq/brooklet/tests/compat/internal/duty"
)

// sources is where the client programs are, seen from the root of the repository.
const sources = "tests/compat/clients"

// client is one column of the table: a library that carries out all duties.
type client struct {
	name     string // also part of the names of topics and groups
	language string
	lacks    duty.Lacks
	env      *environment
	// command is how its program is started, before the common arguments; the first part is relative to the folder of
	// the environment if it has a slash.
	command []string
}

// Versions are pinned here; those of the Go clients are in go.mod, and kcat's is Debian's.
func clients() []*client {
	return []*client{
		{name: "kcat", language: "C", lacks: duty.Lacks{Headers: true, Times: true}, env: goEnvironment("kcat", kcatProgram), command: []string{"./client"}},
		pythonClient("confluent-kafka", "confluent_kafka_client.py", "confluent-kafka==2.16.1"),
		pythonClient("kafka-python", "kafka_python_client.py", "kafka-python==3.0.12", "python-snappy==0.7.3", "lz4==4.4.4", "zstandard==0.23.0", "crc32c==2.7.1"),
		pythonClient("kafka-python-2.0.2", "kafka_python_client.py", "kafka-python==2.0.2", "python-snappy==0.7.3", "lz4==4.4.4", "zstandard==0.23.0"),
		pythonClient("aiokafka", "aiokafka_client.py", "aiokafka==0.14.0", "cramjam==2.11.0"),
		nodeClient("kafkajs", "kafkajs_client.mjs", map[string]string{
			"kafkajs": "2.2.4", "kafkajs-snappy": "1.1.0", "lz4js": "0.2.0", "@bokuweb/zstd-wasm": "0.0.27",
		}),
		nodeClient("platformatic-kafka", "platformatic_client.mjs", map[string]string{
			"@platformatic/kafka": "1.35.0",
		}),
		javaClient("4.4.0"),
		javaClient("3.9.2"),
		javaClient("2.8.2"),
		goClient("franz-go"),
		goClient("sarama"),
		goClient("kafka-go"),
	}
}

func goEnvironment(name string, programs ...program) *environment {
	return &environment{name: name, programs: programs, refresh: buildGo("./" + filepath.Join(sources, name))}
}

func goClient(name string) *client {
	return &client{name: name, language: "Go", env: goEnvironment(name), command: []string{"./client"}}
}

func pythonClient(name, script string, requirements ...string) *client {
	return &client{
		name: name, language: "Python",
		env: &environment{
			name: name, programs: []program{pythonProgram},
			files:   map[string]string{"requirements.txt": strings.Join(requirements, "\n") + "\n"},
			steps:   [][]string{{"python3", "-m", "venv", "venv"}, {"venv/bin/pip", "install", "--quiet", "-r", "requirements.txt"}},
			refresh: copySources(filepath.Join(sources, "python")),
		},
		command: []string{"./venv/bin/python", "-B", script},
	}
}

func nodeClient(name, script string, dependencies map[string]string) *client {
	manifest, err := json.MarshalIndent(map[string]any{"private": true, "dependencies": dependencies}, "", "  ")
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return &client{
		name: name, language: "JavaScript",
		env: &environment{
			name: name, programs: []program{npmProgram},
			files: map[string]string{"package.json": string(manifest)},
			steps: [][]string{{"npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts"}},
			refresh: func(ctx context.Context, e *environment) error {
				if err := linkNode(ctx, e); err != nil {
					return err
				}
				return copySources(filepath.Join(sources, "node"))(ctx, e)
			},
		},
		command: []string{"./node", script},
	}
}

// pom asks Maven for libraries and all that they need.
const pom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>brooklet</groupId><artifactId>compat</artifactId><version>1</version>
  <dependencies>DEPENDENCIES
  </dependencies>
</project>
`

// javaEnvironment has libraries, written group:artifact:version, in the folder lib.
func javaEnvironment(name string, libraries ...string) *environment {
	var dependencies strings.Builder
	for _, library := range libraries {
		part := strings.Split(library, ":")
		dependencies.WriteString("\n    <dependency><groupId>" + part[0] + "</groupId><artifactId>" + part[1] + "</artifactId><version>" + part[2] + "</version></dependency>")
	}
	return &environment{
		name: name, programs: []program{javacProgram, mavenProgram},
		files: map[string]string{"pom.xml": strings.Replace(pom, "DEPENDENCIES", dependencies.String(), 1)},
		steps: [][]string{{
			"mvn", "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
			"-DincludeScope=runtime", "-DoutputDirectory=lib",
		}},
	}
}

// javaFlags make a virtual machine that starts fast and leaves the cores to others.
var javaFlags = []string{"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m"}

func javaClient(version string) *client {
	env := javaEnvironment("kafka-clients-"+version, "org.apache.kafka:kafka-clients:"+version, "org.slf4j:slf4j-simple:1.7.36")
	env.refresh = compileJava(filepath.Join(sources, "java", "JavaClient.java"))
	command := append([]string{"java"}, javaFlags...)
	return &client{
		name: "kafka-clients-" + version, language: "Java", env: env,
		command: append(command, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", "classes:lib/*", "JavaClient"),
	}
}
