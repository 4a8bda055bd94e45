package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// Output formats.
const (
	formatTable = "table"
	formatWide  = "wide" // a table with each sidecar
	formatYAML  = "yaml"
	formatJSON  = "json"
)

func checkFormat(s string) error {
	formats := []string{formatTable, formatWide, formatYAML, formatJSON}
	if slices.Contains(formats, s) {
		return nil
	}
	return fmt.Errorf("--output %q: expected one of %s", s, strings.Join(formats, ", "))
}

// structured reports whether output is for programs.
func (o *options) structured() bool { return o.output == formatYAML || o.output == formatJSON }

// document is a resource as rigctl writes it, which is as it reads it.
type document struct {
	Kind     string            `json:"kind" yaml:"kind"`
	Name     string            `json:"name" yaml:"name"`
	Labels   map[string]string `json:"labels,omitempty" yaml:"labels,omitempty"`
	Revision int64             `json:"revision,omitempty" yaml:"revision,omitempty"`
	Spec     any               `json:"spec,omitempty" yaml:"spec,omitempty"`
	Status   *status           `json:"status,omitempty" yaml:"status,omitempty"`
}

type status struct {
	Running  int32   `json:"running" yaml:"running"`
	Refused  int32   `json:"refused" yaml:"refused"`
	Behind   int32   `json:"behind" yaml:"behind"`
	Sidecars []state `json:"sidecars,omitempty" yaml:"sidecars,omitempty"`
}

// state is a resource on a sidecar, named by whichever of its ends is not obvious.
type state struct {
	Sidecar string `json:"sidecar,omitempty" yaml:"sidecar,omitempty"`
	Kind    string `json:"kind,omitempty" yaml:"kind,omitempty"`
	Name    string `json:"name,omitempty" yaml:"name,omitempty"`
	State   string `json:"state" yaml:"state"`
	Reason  string `json:"reason,omitempty" yaml:"reason,omitempty"`
	Since   string `json:"since,omitempty" yaml:"since,omitempty"`
}

// sidecar is a sidecar as rigctl writes it.
type sidecar struct {
	ID                string            `json:"id" yaml:"id"`
	Labels            map[string]string `json:"labels,omitempty" yaml:"labels,omitempty"`
	Version           string            `json:"version,omitempty" yaml:"version,omitempty"`
	Connected         bool              `json:"connected" yaml:"connected"`
	Since             string            `json:"since,omitempty" yaml:"since,omitempty"`
	RunningGeneration string            `json:"runningGeneration,omitempty" yaml:"runningGeneration,omitempty"`
	DesiredGeneration string            `json:"desiredGeneration,omitempty" yaml:"desiredGeneration,omitempty"`
	Resources         []state           `json:"resources,omitempty" yaml:"resources,omitempty"`
}

func toDocument(r *outriggerv1.Resource) document {
	d := document{Kind: r.Kind, Name: r.Name, Labels: r.Labels, Revision: r.Revision}
	if r.Spec != nil {
		spec := r.Spec.AsMap()
		if r.Kind == resource.KindSecret {
			hideValues(spec)
		}
		d.Spec = exact(spec)
	}
	if s := r.Status; s != nil {
		d.Status = &status{Running: s.Running, Refused: s.Refused, Behind: s.Behind}
		for _, c := range s.Sidecars {
			d.Status.Sidecars = append(d.Status.Sidecars,
				state{Sidecar: c.Sidecar, State: stateWord(c.State), Reason: c.Reason, Since: timeText(c.Since)})
		}
	}
	return d
}

// hideValues empties a Secret's values, as the server does: what a file has need not be in the output of its check.
func hideValues(spec map[string]any) {
	values, _ := spec["values"].(map[string]any)
	for key := range values {
		values[key] = ""
	}
}

func toSidecar(s *outriggerv1.Sidecar) sidecar {
	out := sidecar{
		ID: s.Id, Labels: s.Labels, Version: s.Version, Connected: s.Connected, Since: timeText(s.Since),
		RunningGeneration: s.RunningGeneration, DesiredGeneration: s.DesiredGeneration,
	}
	for _, r := range s.Resources {
		out.Resources = append(out.Resources,
			state{Kind: r.Kind, Name: r.Name, State: stateWord(r.State), Reason: r.Reason, Since: timeText(r.Since)})
	}
	return out
}

// exact makes whole numbers integers, so that they are not written as 1e+06.
func exact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			v[key] = exact(item)
		}
	case []any:
		for i, item := range v {
			v[i] = exact(item)
		}
	case float64:
		if v == math.Trunc(v) && math.Abs(v) <= 1<<53 {
			return int64(v)
		}
	}
	return v
}

func stateWord(s outriggerv1.State) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "STATE_"))
}

func timeText(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// list is how several resources are written in JSON.
type list[T any] struct {
	Kind  string `json:"kind"`
	Items []T    `json:"items"`
}

// write writes items in YAML, as one document each, or in JSON, as a List unless single.
func write[T any](w io.Writer, format string, items []T, single bool) error {
	if format == formatJSON {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if single && len(items) == 1 {
			return e.Encode(items[0])
		}
		return e.Encode(list[T]{"List", append([]T{}, items...)})
	}
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	for _, item := range items {
		if err := e.Encode(item); err != nil {
			return err
		}
	}
	if len(items) == 0 {
		return nil // the encoder cannot close without a document
	}
	return e.Close()
}

// writeTable aligns rows, the first of which are the headings.
func writeTable(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return t.Flush()
}
