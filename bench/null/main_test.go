package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/bench/null/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestItSaysWhereItListensAndEndsWhenTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- serve(ctx, server.Config{}, "127.0.0.1:0", w) }()
	line, err := bufio.NewReader(r).ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "listening ")
	if err != nil || !ok {
		t.Fatalf("it said %q, %v", line, err)
	}
	c := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	defer c.CloseIdleConnections()
	res, err := c.Get("http://" + address + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it did not end within 10 s")
	}
	if err := serve(t.Context(), server.Config{Era: "old"}, "127.0.0.1:0", io.Discard); err == nil {
		t.Error("an unknown era is served")
	}
}
