package api

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
)

// CreateKey implements ResourceService. The key is in nothing but its answer.
func (a *API) CreateKey(ctx context.Context, req *outriggerv1.CreateKeyRequest) (*outriggerv1.CreateKeyResponse, error) {
	if req.GetSpec().GetFields()["hash"] != nil {
		return nil, invalid(resource.Errors{{Path: "spec.hash", Message: "it is made with the key, leave it out"}})
	}
	pepper, err := a.authority.Pepper(ctx)
	if err != nil {
		return nil, a.failed(ctx, err)
	}
	key := apikey.New()
	r, o, err := keyResource(req, apikey.Hash(key, pepper))
	if err != nil {
		return nil, err
	}
	revision, err := a.write(ctx, func(d *desired) ([]store.Write, error) {
		ref := resource.Ref(o)
		if d.byRef[ref] != nil {
			return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("%s exists already", ref))
		}
		if mistakes := d.newMistakes(d.with(nil, []resource.Object{o}), map[string]bool{ref: true}); len(mistakes) > 0 {
			for i := range mistakes {
				_, mistakes[i].Path = cutRef(mistakes[i].Path)
			}
			return nil, invalid(mistakes)
		}
		value, err := store.EncodeResource(r)
		if err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
		return []store.Write{{Key: store.ResourceKey(r.Kind, r.Name), Value: value}}, nil
	})
	if err != nil {
		return nil, err
	}
	a.options.Log.Info("key created", "key", r.Name)
	r.Revision = revision
	r.Status = a.status(r)
	return &outriggerv1.CreateKeyResponse{Key: key, Resource: r}, nil
}

// keyResource is the Key of a request with its hash, in canonical form.
func keyResource(req *outriggerv1.CreateKeyRequest, hash string) (*outriggerv1.Resource, resource.Object, error) {
	r := &outriggerv1.Resource{Kind: resource.KindKey, Name: req.GetName(), Labels: req.GetLabels(), Spec: &structpb.Struct{}}
	if req.Spec != nil {
		r.Spec = proto.CloneOf(req.Spec)
	}
	if r.Spec.Fields == nil {
		r.Spec.Fields = map[string]*structpb.Value{}
	}
	r.Spec.Fields["hash"] = structpb.NewStringValue(hash)
	o, mistakes := resource.Check(r)
	if len(mistakes) > 0 {
		return nil, nil, invalid(mistakes)
	}
	r.Spec = resource.Encode(o)
	return r, o, nil
}
