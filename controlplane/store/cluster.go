package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// openCluster connects to an etcd cluster and reads once, so that a wrong address or certificate shows now.
func (s *Store) openCluster(ctx context.Context, o Options) error {
	c := clientv3.Config{
		Endpoints:            o.Endpoints,
		DialTimeout:          callTimeout,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 5 * time.Second,
		MaxCallSendMsgSize:   maxRequestBytes + maxOverhead,
		Logger:               zapLogger(o.Log),
	}
	if o.CAFile != "" || o.CertFile != "" || o.KeyFile != "" || strings.HasPrefix(o.Endpoints[0], "https:") {
		files := transport.TLSInfo{TrustedCAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile}
		config, err := files.ClientConfig()
		if err != nil {
			return fmt.Errorf("etcd certificates: %w", err)
		}
		c.TLS = config
	}
	client, err := clientv3.New(c)
	if err != nil {
		return err
	}
	s.client = client
	if _, _, err := s.Get(ctx, GenerationKey); err != nil {
		client.Close()
		return fmt.Errorf("etcd at %s does not answer: %w", strings.Join(o.Endpoints, ", "), err)
	}
	return nil
}
