package main

import (
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func tokenCommand(o *options) *cobra.Command {
	parent := &cobra.Command{Use: "token", Short: "Make join tokens for sidecars", Args: cobra.NoArgs, RunE: showHelp}
	var labels []string
	var ttl time.Duration
	var uses int
	create := &cobra.Command{
		Use:   "create",
		Short: "Make a secret with which sidecars join, and write it to standard output; it is shown only now",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			parsed, err := parseLabels(labels)
			if err != nil {
				return err
			}
			if uses < 1 || uses > math.MaxInt32 {
				return fmt.Errorf("--uses %d: expected at least 1", uses)
			}
			return createToken(c, o, &outriggerv1.CreateJoinTokenRequest{
				Labels: parsed, Ttl: durationpb.New(ttl), MaxUses: int32(uses),
			})
		},
	}
	f := create.Flags()
	f.StringArrayVar(&labels, "label", nil, "a label, KEY=VALUE, of the sidecars that join with it; may be repeated")
	f.DurationVar(&ttl, "ttl", time.Hour, "how long it can be used, at most 720h")
	f.IntVar(&uses, "uses", 1, "how many sidecars can join with it")
	parent.AddCommand(create)
	return parent
}

// showHelp is what a command does that only has commands.
func showHelp(c *cobra.Command, _ []string) error { return c.Help() }

// joinToken is a token as rigctl writes it for programs.
type joinToken struct {
	Token   string `json:"token" yaml:"token"`
	Expires string `json:"expires" yaml:"expires"`
}

// createToken writes the token alone to standard output, so that it can be redirected, or for programs with its end.
func createToken(c *cobra.Command, o *options, req *outriggerv1.CreateJoinTokenRequest) error {
	client, err := o.client()
	if err != nil {
		return err
	}
	res, err := call(c.Context(), o, client.CreateJoinToken, req)
	if err != nil {
		return err
	}
	if o.structured() {
		return write(c.OutOrStdout(), o.output, []joinToken{{res.Token, timeText(res.Expires)}}, true)
	}
	fmt.Fprintln(c.OutOrStdout(), res.Token)
	fmt.Fprintf(c.ErrOrStderr(), "expires %s\n", timeText(res.Expires))
	return nil
}
