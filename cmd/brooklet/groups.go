package main

import (
	"errors"

	"github.com/urfave/cli/v2"
)

func groupsCommand() *cli.Command {
	return commandGroup(cli.Command{
		Name:  "groups",
		Usage: "list and describe consumer groups, move their offsets, delete them",
		Subcommands: []*cli.Command{
			listGroupsCommand(), describeGroupsCommand(), resetOffsetsCommand(), deleteGroupsCommand(), deleteOffsetsCommand(),
		},
	})
}

// groupListing is a group in JSON output.
type groupListing struct {
	Name         string `json:"name"`
	State        string `json:"state"`
	Type         string `json:"type"`          // classic or consumer
	ProtocolType string `json:"protocol_type"` // consumer, connect, ...; empty for groups that only keep offsets
}

func listGroupsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:        "list",
		Usage:       "list all groups",
		Description: "Examples:\n   brooklet groups list\n   brooklet groups list --state Stable --state Empty",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "state", Usage: "only groups in this `STATE`: Empty, Stable, PreparingRebalance, CompletingRebalance, Assigning, Reconciling or Dead; may be given many times"},
		},
	}, nil, listGroups)
}

func listGroups(s *session) error {
	groups, err := s.admin.ListGroups(s.ctx, s.StringSlice("state")...)
	if err != nil {
		return err
	}
	listings := []groupListing{}
	shown := newTable("GROUP", "STATE", "TYPE", "PROTOCOL")
	for _, g := range groups.Sorted() {
		listings = append(listings, groupListing{g.Group, g.State, g.GroupType, g.ProtocolType})
		shown.add(g.Group, g.State, g.GroupType, g.ProtocolType)
	}
	return s.out.print(listings, shown)
}

// deletedGroup is a group in JSON output.
type deletedGroup struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"`
}

func deleteGroupsCommand() *cli.Command {
	return clientCommand(cli.Command{
		Name:        "delete",
		Usage:       "delete groups without members, with their offsets",
		ArgsUsage:   "GROUP...",
		Description: "Example:\n   brooklet groups delete billing",
	}, needArguments("one or more groups"), deleteGroups)
}

func deleteGroups(s *session) error {
	results, err := s.admin.DeleteGroups(s.ctx, s.Args().Slice()...)
	if err != nil {
		return err
	}
	deleted := []deletedGroup{}
	var errs []error
	for _, r := range results.Sorted() {
		d := deletedGroup{Name: r.Group}
		if err := brokerError(groupNamed(r.Group), r.Err, r.ErrMessage); err != nil {
			d.Error = err.Error()
			errs = append(errs, err)
		} else {
			s.out.note("%s deleted", groupNamed(r.Group))
		}
		deleted = append(deleted, d)
	}
	return joinErrors(s.out.print(deleted), errors.Join(errs...))
}
