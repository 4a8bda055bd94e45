package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func createCommand(o *options) *cobra.Command {
	parent := &cobra.Command{Use: "create", Short: "Make API keys for callers", Args: cobra.NoArgs, RunE: showHelp}
	parent.AddCommand(createKeyCommand(o))
	return parent
}

// newKey is the flags of a Key.
type newKey struct {
	owner, tenant          string
	scopes, groups, labels []string
	expires                string
	ttl                    time.Duration
}

func createKeyCommand(o *options) *cobra.Command {
	k := &newKey{}
	c := &cobra.Command{
		Use:   "key NAME",
		Short: "Make an API key and its Key, and write the key to standard output; it is shown only now",
		Long: "Make an API key and its Key, and write the key to standard output. It is shown only now: the control plane keeps\n" +
			"its hash. The Key can be changed with apply as any resource, and its callers are refused once it is deleted.",
		Example: "  rigctl create key nightly --tenant acme --scope weather.read --ttl 720h > nightly.key",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			spec, err := k.spec(time.Now())
			if err != nil {
				return err
			}
			return createKey(c, o, &outriggerv1.CreateKeyRequest{Name: args[0], Spec: spec})
		},
	}
	f := c.Flags()
	f.StringVar(&k.owner, "owner", "", "who answers for it, for people")
	f.StringVar(&k.tenant, "tenant", "", "the Tenant that its callers belong to (default as Tenants select)")
	f.StringArrayVar(&k.scopes, "scope", nil, "a scope that its callers have; may be repeated")
	f.StringArrayVar(&k.groups, "group", nil, "a group that its callers are in; may be repeated")
	f.StringArrayVar(&k.labels, "label", nil, "a label, KEY=VALUE, for Tenants and rules; may be repeated")
	f.DurationVar(&k.ttl, "ttl", 0, "how long it is accepted (default for ever)")
	f.StringVar(&k.expires, "expires", "", "until when it is accepted, as 2027-01-31T12:00:00Z")
	return c
}

// spec is what the flags say, as a Key's spec.
func (k *newKey) spec(now time.Time) (*structpb.Struct, error) {
	labels, err := parseLabels(k.labels)
	if err != nil {
		return nil, err
	}
	key := &outriggerv1.Key{Owner: k.owner, Tenant: k.tenant, Scopes: k.scopes, Groups: k.groups, Labels: labels}
	switch {
	case k.ttl != 0 && k.expires != "":
		return nil, errors.New("give only one of --ttl and --expires")
	case k.ttl < 0:
		return nil, fmt.Errorf("--ttl %v is over already", k.ttl)
	case k.ttl > 0:
		key.Expires = timestamppb.New(now.Add(k.ttl).Truncate(time.Second))
	case k.expires != "":
		t, err := time.Parse(time.RFC3339, k.expires)
		if err != nil {
			return nil, fmt.Errorf("--expires %q is not a time such as 2027-01-31T12:00:00Z", k.expires)
		}
		key.Expires = timestamppb.New(t)
	}
	return resource.Encode(key), nil
}

// createdKey is a key as rigctl writes it for programs.
type createdKey struct {
	Key      string   `json:"key" yaml:"key"`
	Resource document `json:"resource" yaml:"resource"`
}

// createKey writes the key alone to standard output, so that it can be redirected, or for programs with its resource.
func createKey(c *cobra.Command, o *options, req *outriggerv1.CreateKeyRequest) error {
	client, err := o.client()
	if err != nil {
		return err
	}
	res, err := call(c.Context(), o, client.CreateKey, req)
	if err != nil {
		return err
	}
	if o.structured() {
		return write(c.OutOrStdout(), o.output, []createdKey{{res.Key, toDocument(res.Resource)}}, true)
	}
	if _, err := fmt.Fprintln(c.OutOrStdout(), res.Key); err != nil {
		return err
	}
	ends := "does not expire"
	if t := res.Resource.GetSpec().GetFields()["expires"].GetStringValue(); t != "" {
		ends = "expires " + t
	}
	fmt.Fprintf(c.ErrOrStderr(), "%s/%s %s; its key is shown only now\n", res.Resource.Kind, res.Resource.Name, ends)
	return nil
}
