package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func applyCommand(o *options) *cobra.Command {
	var files []string
	var dryRun bool
	c := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or update resources, all of them or none",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return apply(c, o, files, dryRun)
		},
	}
	filesFlag(c, &files)
	c.MarkFlagRequired("filename")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "have the server check everything, but store nothing")
	return c
}

func filesFlag(c *cobra.Command, files *[]string) {
	c.Flags().StringArrayVarP(files, "filename", "f", nil, "a file of resources, a directory of such files, or - for standard input; may be repeated")
}

func apply(c *cobra.Command, o *options, files []string, dryRun bool) error {
	in, err := readInput(files, c.InOrStdin())
	if err != nil {
		return err
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	res, err := call(c.Context(), o, client.Apply, &outriggerv1.ApplyRequest{Resources: in.resources, DryRun: dryRun})
	if err != nil {
		var mistakes *mistakesError
		if errors.As(err, &mistakes) {
			in.located(mistakes.found)
		}
		return err
	}
	if o.structured() {
		return writeResources(c.OutOrStdout(), o.output, res.Resources, false)
	}
	for _, r := range res.Resources {
		what := fmt.Sprintf("applied, revision %d", r.Revision)
		if dryRun {
			what = "valid, not stored (dry run)"
		}
		fmt.Fprintf(c.OutOrStdout(), "%s/%s %s\n", r.Kind, r.Name, what)
	}
	return nil
}

func validateCommand(o *options) *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use:   "validate -f FILE|DIR|-",
		Short: "Check resources without a server, as if nothing else were stored",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			in, err := readInput(files, c.InOrStdin())
			if err != nil {
				return err
			}
			if mistakes := in.validate(); len(mistakes) > 0 {
				return refused(mistakes)
			}
			if o.structured() {
				return writeResources(c.OutOrStdout(), o.output, in.resources, false)
			}
			fmt.Fprintf(c.OutOrStdout(), "%d resources are valid\n", len(in.resources))
			return nil
		},
	}
	filesFlag(c, &files)
	c.MarkFlagRequired("filename")
	return c
}
