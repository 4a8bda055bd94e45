package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/outrigger/v1/outriggerv1connect"
)

func getCommand(o *options) *cobra.Command {
	var labels []string
	c := &cobra.Command{
		Use:   "get [KIND [NAME]]",
		Short: "Show resources and what became of them",
		Long: "Show resources and what became of them. With -o wide there is a line for each sidecar, with its reason;\n" +
			"what -o yaml and -o json write can be applied again.",
		Example: "  rigctl get bindings\n  rigctl get binding demo -o wide\n  rigctl get -o yaml > all.yaml",
		Args:    cobra.MaximumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return get(c, o, args, labels)
		},
	}
	c.Flags().StringArrayVarP(&labels, "label", "l", nil, "only resources with this label, KEY=VALUE; may be repeated")
	return c
}

func get(c *cobra.Command, o *options, args, labels []string) error {
	match, err := parseLabels(labels)
	if err != nil {
		return err
	}
	var kind string
	if len(args) > 0 {
		if kind, err = parseKind(args[0]); err != nil {
			return err
		}
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	if len(args) == 2 {
		res, err := call(c.Context(), o, client.Get, &outriggerv1.GetRequest{Kind: kind, Name: args[1]})
		if err != nil {
			return err
		}
		return writeResources(c.OutOrStdout(), o.output, []*outriggerv1.Resource{res.Resource}, true)
	}
	resources, err := listAll(c.Context(), o, client, kind, match)
	if err != nil {
		return err
	}
	return writeResources(c.OutOrStdout(), o.output, resources, false)
}

// listAll reads every page and, for -o wide, every resource's sidecars.
func listAll(ctx context.Context, o *options, client outriggerv1connect.ResourceServiceClient, kind string, match map[string]string) ([]*outriggerv1.Resource, error) {
	var all []*outriggerv1.Resource
	req := &outriggerv1.ListRequest{Kind: kind, MatchLabels: match}
	for {
		res, err := call(ctx, o, client.List, req)
		if err != nil {
			return nil, err
		}
		all = append(all, res.Resources...)
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			break
		}
	}
	if o.output != formatWide {
		return all, nil
	}
	for i, r := range all {
		res, err := call(ctx, o, client.Get, &outriggerv1.GetRequest{Kind: r.Kind, Name: r.Name})
		if err != nil {
			return nil, err
		}
		all[i] = res.Resource
	}
	return all, nil
}

// writeResources writes resources in a format. Single, they are one that was asked for by name.
func writeResources(w io.Writer, format string, resources []*outriggerv1.Resource, single bool) error {
	switch format {
	case formatTable:
		return writeTable(w, resourceRows(resources))
	case formatWide:
		return writeTable(w, wideRows(resources))
	}
	documents := make([]document, len(resources))
	for i, r := range resources {
		documents[i] = toDocument(r)
	}
	return write(w, format, documents, single)
}

func resourceRows(resources []*outriggerv1.Resource) [][]string {
	rows := [][]string{{"KIND", "NAME", "REVISION", "RUNNING", "REFUSED", "BEHIND"}}
	for _, r := range resources {
		s := r.Status
		rows = append(rows, []string{r.Kind, r.Name, strconv.FormatInt(r.Revision, 10),
			number(s.GetRunning()), number(s.GetRefused()), number(s.GetBehind())})
	}
	return rows
}

func number(n int32) string { return strconv.Itoa(int(n)) }

func wideRows(resources []*outriggerv1.Resource) [][]string {
	rows := [][]string{{"KIND", "NAME", "REVISION", "SIDECAR", "STATE", "FOR", "REASON"}}
	for _, r := range resources {
		row := []string{r.Kind, r.Name, strconv.FormatInt(r.Revision, 10)}
		for _, s := range r.Status.GetSidecars() {
			rows = append(rows, slices.Concat(row, []string{s.Sidecar, stateWord(s.State), since(s.Since.AsTime()), s.Reason}))
		}
		if len(r.Status.GetSidecars()) == 0 {
			rows = append(rows, append(row, "(no sidecar)"))
		}
	}
	return rows
}

func sidecarsCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "sidecars",
		Short: "Show every sidecar and what it runs",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := o.client()
			if err != nil {
				return err
			}
			res, err := call(c.Context(), o, client.ListSidecars, &outriggerv1.ListSidecarsRequest{})
			if err != nil {
				return err
			}
			return writeSidecars(c.OutOrStdout(), o.output, res.Sidecars)
		},
	}
}

func writeSidecars(w io.Writer, format string, sidecars []*outriggerv1.Sidecar) error {
	switch format {
	case formatTable:
		return writeTable(w, sidecarRows(sidecars))
	case formatWide:
		rows := [][]string{{"ID", "KIND", "NAME", "STATE", "FOR", "REASON"}}
		for _, s := range sidecars {
			for _, r := range s.Resources {
				rows = append(rows, []string{s.Id, r.Kind, r.Name, stateWord(r.State), since(r.Since.AsTime()), r.Reason})
			}
		}
		return writeTable(w, rows)
	}
	items := make([]sidecar, len(sidecars))
	for i, s := range sidecars {
		items[i] = toSidecar(s)
	}
	return write(w, format, items, false)
}

func sidecarRows(sidecars []*outriggerv1.Sidecar) [][]string {
	rows := [][]string{{"ID", "CONNECTED", "FOR", "VERSION", "GENERATION", "RUNNING", "REFUSED", "BEHIND", "LABELS"}}
	for _, s := range sidecars {
		count := map[outriggerv1.State]int32{}
		for _, r := range s.Resources {
			count[r.State]++
		}
		rows = append(rows, []string{s.Id, strconv.FormatBool(s.Connected), since(s.Since.AsTime()), s.Version, generationWord(s, count),
			number(count[outriggerv1.State_STATE_RUNNING]), number(count[outriggerv1.State_STATE_REFUSED]), number(count[outriggerv1.State_STATE_BEHIND]),
			labelList(s.Labels)})
	}
	return rows
}

// labelList is labels as selectors match them, in order.
func labelList(labels map[string]string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, key+"="+labels[key])
	}
	return strings.Join(list, ",")
}

// generationWord tells how a sidecar's generation stands to the one it should run: current; partial, when it runs all
// of that but what it refuses; or behind.
func generationWord(s *outriggerv1.Sidecar, count map[outriggerv1.State]int32) string {
	switch {
	case s.RunningGeneration == s.DesiredGeneration:
		return "current"
	case count[outriggerv1.State_STATE_REFUSED] > 0 && count[outriggerv1.State_STATE_BEHIND] == 0:
		return "partial"
	default:
		return "behind"
	}
}

// watchRow is a change on one line.
func watchRow(res *outriggerv1.WatchResponse) string {
	what := "put"
	if res.Change == outriggerv1.Change_CHANGE_DELETED {
		what = "deleted"
	}
	r := res.Resource
	return fmt.Sprintf("%d %s %s/%s", r.Revision, what, r.Kind, r.Name)
}
