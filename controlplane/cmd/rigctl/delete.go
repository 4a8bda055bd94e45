package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func deleteCommand(o *options) *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use:   "delete KIND NAME | delete -f FILE|DIR|-",
		Short: "Delete resources",
		Long: "Delete a resource, or every one that files name, one after the other: those that name others first.\n" +
			"It goes on after one that cannot be deleted. Revisions in files are not looked at.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(files) > 0 && len(args) == 0 || len(files) == 0 && len(args) == 2 {
				return nil
			}
			return errors.New("give either a kind and a name, or files with -f")
		},
		RunE: func(c *cobra.Command, args []string) error {
			targets, err := deleteTargets(c, args, files)
			if err != nil {
				return err
			}
			return deleteAll(c, o, targets)
		},
	}
	filesFlag(c, &files)
	return c
}

func deleteTargets(c *cobra.Command, args, files []string) ([]*outriggerv1.Resource, error) {
	if len(files) == 0 {
		kind, err := parseKind(args[0])
		return []*outriggerv1.Resource{{Kind: kind, Name: args[1]}}, err
	}
	in, err := readInput(files, c.InOrStdin())
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(in.resources, byDependency)
	slices.Reverse(in.resources)
	return in.resources, nil
}

// byDependency orders what is named before what names it.
func byDependency(a, b *outriggerv1.Resource) int {
	kinds := resource.Kinds()
	return cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind))
}

func deleteAll(c *cobra.Command, o *options, targets []*outriggerv1.Resource) error {
	client, err := o.client()
	if err != nil {
		return err
	}
	var failures []error
	for _, r := range targets {
		_, err := call(c.Context(), o, client.Delete, &outriggerv1.DeleteRequest{Kind: r.Kind, Name: r.Name})
		var failed *exitError
		switch {
		case err == nil:
			fmt.Fprintf(c.OutOrStdout(), "%s/%s deleted\n", r.Kind, r.Name)
		case errors.As(err, &failed) && failed.status == exitUnreachable:
			return err
		default:
			failures = append(failures, err)
		}
	}
	if len(failures) > 0 {
		return &exitError{exitRefused, errors.Join(failures...)}
	}
	return nil
}
