package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/outrigger/v1/outriggerv1connect"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// kindSidecar is what a sidecar is called where it is deleted like a resource.
const kindSidecar = "Sidecar"

func deleteCommand(o *options) *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use:   "delete KIND NAME | delete -f FILE|DIR|-",
		Short: "Delete resources, or take back a sidecar's admission",
		Long: "Delete a resource, or every one that files name, one after the other: those that name others first.\n" +
			"It goes on after one that cannot be deleted. Revisions in files are not looked at.\n\n" +
			"KIND may also be sidecar: its stream then ends, and it can neither connect nor renew its certificate.\n" +
			"It goes on serving what it last had: stop its process to end that.",
		Example: "  rigctl delete binding demo\n  rigctl delete -f outrigger.yaml\n  rigctl delete sidecar demo-1",
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
		kind, err := parseKind(args[0], kindSidecar)
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
	var deleted []*outriggerv1.Resource
	var failures []error
	status := exitRefused
	for _, r := range targets {
		err := deleteOne(c.Context(), o, client, r)
		if err == nil {
			deleted = append(deleted, &outriggerv1.Resource{Kind: r.Kind, Name: r.Name})
			continue
		}
		failures = append(failures, err)
		var failed *exitError
		if errors.As(err, &failed) && failed.status == exitUnreachable {
			status = exitUnreachable
			break
		}
	}
	if err := writeDeleted(c, o, deleted); err != nil {
		return err
	}
	if len(failures) > 0 {
		return &exitError{status, errors.Join(failures...)}
	}
	return nil
}

// writeDeleted names what was deleted.
func writeDeleted(c *cobra.Command, o *options, deleted []*outriggerv1.Resource) error {
	if o.structured() {
		return writeResources(c.OutOrStdout(), o.output, deleted, false)
	}
	for _, r := range deleted {
		fmt.Fprintf(c.OutOrStdout(), "%s/%s deleted\n", r.Kind, r.Name)
	}
	return nil
}

func deleteOne(ctx context.Context, o *options, client outriggerv1connect.ResourceServiceClient, r *outriggerv1.Resource) error {
	if r.Kind == kindSidecar {
		_, err := call(ctx, o, client.DeleteSidecar, &outriggerv1.DeleteSidecarRequest{Id: r.Name})
		return err
	}
	_, err := call(ctx, o, client.Delete, &outriggerv1.DeleteRequest{Kind: r.Kind, Name: r.Name})
	return err
}
