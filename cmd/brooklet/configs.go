package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/urfave/cli/v2"
)

func configsCommand() *cli.Command {
	return commandGroup(cli.Command{
		Name:  "configs",
		Usage: "list, describe, set and unset configs of topics, and show those of the broker",
		Description: "Configs have Kafka's names. Those of the broker are settings of brooklet serve in Kafka's words and cannot be changed\n" +
			"while it runs.",
		Subcommands: []*cli.Command{listConfigsCommand(), describeConfigsCommand(), setConfigsCommand(), unsetConfigsCommand()},
	})
}

// Kinds of things that have configs.
const (
	kindTopic  = "topic"
	kindBroker = "broker"
)

// configDescription is a config in JSON output.
type configDescription struct {
	Name      string  `json:"name"`
	Value     *string `json:"value"` // null: secret
	Source    string  `json:"source"`
	IsDefault bool    `json:"is_default"`
}

// resourceDescription is a topic or broker with configs in JSON output.
type resourceDescription struct {
	Kind    string              `json:"kind"`
	Name    string              `json:"name"`
	Configs []configDescription `json:"configs"`
}

func listConfigsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:        "list",
		Usage:       "list the configs of all topics and the broker that are not at their defaults",
		Description: "Examples:\n   brooklet configs list\n   brooklet configs list --output json",
	}, nil, listConfigs)
}

func listConfigs(s *session) error {
	meta, err := s.admin.Metadata(s.ctx)
	if err != nil {
		return err
	}
	var described []resourceDescription
	for _, node := range meta.Brokers {
		r, err := s.describeConfigs(kindBroker, strconv.Itoa(int(node.NodeID)))
		if err != nil {
			return err
		}
		described = append(described, r...)
	}
	if names := meta.Topics.Names(); len(names) > 0 {
		r, err := s.describeConfigs(kindTopic, names...)
		if err != nil {
			return err
		}
		described = append(described, r...)
	}
	listed := []resourceDescription{}
	shown := newTable("KIND", "NAME", "CONFIG", "VALUE", "SOURCE")
	for _, r := range described {
		var set []configDescription
		for _, c := range r.Configs {
			if !c.IsDefault {
				set = append(set, c)
				shown.add(r.Kind, r.Name, c.Name, c.shown(), c.Source)
			}
		}
		if len(set) > 0 {
			listed = append(listed, resourceDescription{r.Kind, r.Name, set})
		}
	}
	return s.out.print(listed, shown)
}

func describeConfigsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:      "describe",
		Usage:     "show all configs of a topic, a named stream or the broker",
		ArgsUsage: "topic NAME | broker [ID]",
		Description: "Examples:\n   brooklet configs describe topic orders\n   brooklet configs describe topic sessions/alice\n" +
			"   brooklet configs describe broker",
	}, checkResource(false), describeConfigsOfOne)
}

// checkResource checks the arguments KIND and NAME, and that more follow if they must.
func checkResource(more bool) func(*cli.Context) error {
	return func(c *cli.Context) error {
		kind, n := c.Args().First(), c.NArg()
		var err error
		switch {
		case kind != kindTopic && kind != kindBroker:
			err = fmt.Errorf("name what has the configs: %s NAME or %s [ID]", kindTopic, kindBroker)
		case kind == kindTopic && n < 2:
			err = errors.New("name the topic")
		case !more && n > 2:
			err = fmt.Errorf("%q is one argument too many", c.Args().Get(2))
		case more && n < 3:
			err = errors.New("name the configs to change")
		}
		if err != nil {
			return wrongSettings(fmt.Errorf("%w; see %s --help", err, c.Command.HelpName))
		}
		return nil
	}
}

func describeConfigsOfOne(s *session) error {
	described, err := s.describeConfigs(s.Args().First(), s.Args().Get(1))
	if err != nil {
		return err
	}
	shown := newTable("CONFIG", "VALUE", "SOURCE")
	for _, c := range described[0].Configs {
		shown.add(c.Name, c.shown(), c.Source)
	}
	return s.out.print(described[0], shown)
}

// findBroker returns the id of a broker that is there; an empty text names the only one.
func (s *session) findBroker(text string) (int32, error) {
	brokers, err := s.admin.ListBrokers(s.ctx)
	if err != nil {
		return 0, err
	}
	if text == "" && len(brokers) == 1 {
		return brokers[0].NodeID, nil
	}
	for _, id := range brokers.NodeIDs() {
		if strconv.Itoa(int(id)) == text {
			return id, nil
		}
	}
	return 0, fmt.Errorf("there is no broker %q: write the id of one of %v", text, brokers.NodeIDs())
}

// describeConfigs asks for all configs of topics, or of one broker.
func (s *session) describeConfigs(kind string, names ...string) ([]resourceDescription, error) {
	var resources kadm.ResourceConfigs
	var err error
	if kind == kindTopic {
		resources, err = s.admin.DescribeTopicConfigs(s.ctx, names...)
	} else {
		var id int32
		if id, err = s.findBroker(names[0]); err != nil {
			return nil, err
		}
		resources, err = s.admin.DescribeBrokerConfigs(s.ctx, id)
	}
	if err != nil {
		return nil, err
	}
	described := make([]resourceDescription, len(resources))
	for i, r := range resources {
		if r.Err != nil {
			return nil, brokerError(resourceNamed(kind, r.Name), r.Err, r.ErrMessage)
		}
		described[i] = resourceDescription{Kind: kind, Name: r.Name}
		for _, c := range r.Configs {
			described[i].Configs = append(described[i].Configs,
				configDescription{c.Key, c.Value, sourceName(c.Source), c.Source == kmsg.ConfigSourceDefaultConfig})
		}
	}
	return described, nil
}

func resourceNamed(kind, name string) string {
	if kind == kindTopic {
		return topicNamed(name)
	}
	return "broker " + name
}

// sourceName says where a value comes from.
func sourceName(s kmsg.ConfigSource) string {
	switch s {
	case kmsg.ConfigSourceDynamicTopicConfig:
		return kindTopic
	case kmsg.ConfigSourceDynamicBrokerConfig, kmsg.ConfigSourceDynamicDefaultBrokerConfig, kmsg.ConfigSourceStaticBrokerConfig:
		return kindBroker
	case kmsg.ConfigSourceDefaultConfig:
		return "default"
	}
	return strings.ToLower(s.String())
}

// secret stands for values that brokers do not tell.
const secret = "(secret)"

func (c *configDescription) shown() string {
	if c.Value == nil {
		return secret
	}
	return *c.Value
}

// configValue is the value of a config for output.
func configValue(c kadm.Config) string {
	if c.Value == nil {
		return secret
	}
	return *c.Value
}

func setConfigsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:      "set",
		Usage:     "set configs of a topic or named stream",
		ArgsUsage: "topic NAME CONFIG=VALUE...",
		Description: "Either all configs are set or none; configs that are not named stay as they are.\n\n" +
			"Examples:\n   brooklet configs set topic orders retention.ms=86400000\n" +
			"   brooklet configs set topic sessions/alice retention.bytes=1048576 retention.ms=-1",
		Flags: []cli.Flag{dryRunFlag()},
	}, checkResource(true), setConfigs)
}

func setConfigs(s *session) error {
	var edits []kadm.AlterConfig
	for _, text := range s.Args().Slice()[2:] {
		name, value, err := splitConfig(text)
		if err != nil {
			return wrongSettings(err)
		}
		edits = append(edits, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
	}
	return s.alterConfigs(edits)
}

func unsetConfigsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:      "unset",
		Usage:     "put configs of a topic or named stream back to their defaults",
		ArgsUsage: "topic NAME CONFIG...",
		Description: "One that is at its default already may be named. If one does not exist, none is put back.\n\n" +
			"Example:\n   brooklet configs unset topic orders retention.ms retention.bytes",
		Flags: []cli.Flag{dryRunFlag()},
	}, checkResource(true), unsetConfigs)
}

func unsetConfigs(s *session) error {
	var edits []kadm.AlterConfig
	for _, name := range s.Args().Slice()[2:] {
		if strings.Contains(name, "=") {
			return wrongSettings(fmt.Errorf("config %q: write the name alone", name))
		}
		edits = append(edits, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: name})
	}
	if err := s.checkConfigs(s.Args().First(), s.Args().Get(1), edits); err != nil {
		return err
	}
	return s.alterConfigs(edits)
}

// checkConfigs makes sure that there are the configs to unset: brokers take any name for that.
func (s *session) checkConfigs(kind, name string, edits []kadm.AlterConfig) error {
	described, err := s.describeConfigs(kind, name)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range edits {
		if !slices.ContainsFunc(described[0].Configs, func(c configDescription) bool { return c.Name == e.Name }) {
			errs = append(errs, fmt.Errorf("%s has no config %q", resourceNamed(kind, name), e.Name))
		}
	}
	return joinErrors(errs...)
}

// alteredResource is what a command has changed, in JSON output.
type alteredResource struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	DryRun bool   `json:"dry_run,omitempty"`
}

func (s *session) alterConfigs(edits []kadm.AlterConfig) error {
	kind, name := s.Args().First(), s.Args().Get(1)
	altered, err := s.sendConfigs(kind, name, edits)
	if err != nil {
		return err
	}
	for _, r := range altered {
		if r.Err != nil {
			return brokerError(resourceNamed(kind, name), r.Err, r.ErrMessage)
		}
	}
	done := "changed"
	if s.dryRun() {
		done = "would be changed"
	}
	s.out.note("%s %s", resourceNamed(kind, name), done)
	return s.out.print(alteredResource{kind, name, s.dryRun()})
}

func (s *session) sendConfigs(kind, name string, edits []kadm.AlterConfig) (kadm.AlterConfigsResponses, error) {
	if kind == kindTopic {
		if s.dryRun() {
			return s.admin.ValidateAlterTopicConfigs(s.ctx, edits, name)
		}
		return s.admin.AlterTopicConfigs(s.ctx, edits, name)
	}
	id, err := s.findBroker(name)
	if err != nil {
		return nil, err
	}
	if s.dryRun() {
		return s.admin.ValidateAlterBrokerConfigs(s.ctx, edits, id)
	}
	return s.admin.AlterBrokerConfigs(s.ctx, edits, id)
}
