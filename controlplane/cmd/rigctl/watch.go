package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func watchCommand(o *options) *cobra.Command {
	var from int64
	c := &cobra.Command{
		Use:   "watch [KIND]",
		Short: "Write what there is and then every change, until interrupted",
		Long: "Write what there is and then every change, until interrupted. A line is \"REVISION put|deleted KIND/NAME\";\n" +
			"with -o json it is an object with the change and the resource.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if o.output == formatYAML {
				return errors.New("-o yaml cannot show changes, use table or json")
			}
			req := &outriggerv1.WatchRequest{FromRevision: from}
			if len(args) == 1 {
				kind, err := parseKind(args[0])
				if err != nil {
					return err
				}
				req.Kind = kind
			}
			return watch(c, o, req)
		},
	}
	c.Flags().Int64Var(&from, "from-revision", 0, "only changes after this revision")
	return c
}

func watch(c *cobra.Command, o *options, req *outriggerv1.WatchRequest) error {
	client, err := o.client()
	if err != nil {
		return err
	}
	stream, err := client.Watch(c.Context(), req)
	if err != nil {
		return o.failed(err)
	}
	defer stream.Close()
	for stream.Receive() {
		if err := writeChange(c, o.output, stream.Msg()); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil && c.Context().Err() == nil {
		return o.failed(err)
	}
	return nil
}

func writeChange(c *cobra.Command, format string, res *outriggerv1.WatchResponse) error {
	if format == formatJSON {
		change := map[string]any{"change": "put", "resource": toDocument(res.Resource)}
		if res.Change == outriggerv1.Change_CHANGE_DELETED {
			change["change"] = "deleted"
		}
		return json.NewEncoder(c.OutOrStdout()).Encode(change)
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), watchRow(res))
	return err
}
