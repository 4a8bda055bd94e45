package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/template"
	"time"
)

var (
	//go:embed nginx.conf
	nginxConf string
	//go:embed sidecar.yaml
	sidecarYAML string
)

// readyTimeout is how long a process may take to serve.
const readyTimeout = 15 * time.Second

// targets are the running processes of a run: the null upstreams and what stands before them.
type targets struct {
	upstreams map[string]string   // address by era
	proxies   map[string]*process // nginx and sidecar
	addresses map[string]string   // of the proxies
	all       []*process
	once      sync.Once
}

// startTargets starts everything a run needs. When it fails nothing is left running.
func startTargets(ctx context.Context, o options) (*targets, error) {
	t := &targets{upstreams: map[string]string{}, proxies: map[string]*process{}, addresses: map[string]string{}}
	if err := t.start(ctx, o); err != nil {
		t.stop()
		return nil, err
	}
	return t, nil
}

func (t *targets) start(ctx context.Context, o options) error {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, era := range []string{stateless, legacy} {
		if err := t.startNull(era); err != nil {
			return fmt.Errorf("start the %s upstream: %w", era, err)
		}
	}
	if slices.Contains(o.what, "nginx") {
		if err := t.startNginx(ctx, dir); err != nil {
			return fmt.Errorf("start nginx: %w", err)
		}
	}
	if slices.Contains(o.what, "sidecar") {
		if err := t.startSidecar(ctx, o.sidecar, dir); err != nil {
			return fmt.Errorf("start the sidecar: %w", err)
		}
	}
	return nil
}

// stop ends every process. It may be called again.
func (t *targets) stop() {
	t.once.Do(func() {
		for _, p := range slices.Backward(t.all) {
			p.stop()
		}
	})
}

// startNull starts this program as the null upstream of an era.
func (t *targets) startNull(era string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := command(-1, self, "null", era)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	t.all = append(t.all, &process{cmd})
	line, err := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "listening ")
	if err != nil || !ok {
		return fmt.Errorf("it said %q: %w", line, err)
	}
	t.upstreams[era] = address
	return nil
}

func (t *targets) startNginx(ctx context.Context, dir string) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := t.write(file, nginxConf, dir, port); err != nil {
		return err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return t.startProxy("nginx", address, filepath.Join(dir, "nginx.out"),
		[]string{"nginx", "-c", file, "-e", filepath.Join(dir, "nginx.log")},
		func() error { return accepts(ctx, address) })
}

func (t *targets) startSidecar(ctx context.Context, program, dir string) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	adminPort, err := freePort()
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "sidecar.yaml")
	if err := t.write(file, sidecarYAML, dir, port); err != nil {
		return err
	}
	address, admin := fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("127.0.0.1:%d", adminPort)
	return t.startProxy("sidecar", address, filepath.Join(dir, "sidecar.log"),
		[]string{program, "--config", file, "--listen", address, "--admin", admin},
		func() error { return ready(ctx, "http://"+admin+"/readyz") })
}

// startProxy starts a proxy on the machine's last core, its output in a file, and waits until check passes.
func (t *targets) startProxy(name, address, output string, args []string, check func() error) error {
	f, err := os.Create(output)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := command(runtime.NumCPU()-1, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{cmd}
	t.all = append(t.all, p)
	t.proxies[name], t.addresses[name] = p, address
	end := time.Now().Add(readyTimeout)
	for err := check(); err != nil; err = check() {
		if time.Now().After(end) {
			return fmt.Errorf("not ready within %v: %w (see %s)", readyTimeout, err, output)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// write fills in a configuration template.
func (t *targets) write(file, text, dir string, port int) error {
	tmpl, err := template.New(filepath.Base(file)).Parse(text)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return tmpl.Execute(f, map[string]any{"Dir": dir, "Port": port, "Upstreams": t.upstreams})
}

// endpoint is where a row's calls go.
func (t *targets) endpoint(r row) string {
	switch r.what {
	case "nginx":
		return fmt.Sprintf("http://%s/%s/%s", t.addresses[r.what], r.era, r.answer)
	case "sidecar":
		return fmt.Sprintf("http://%s/%s", t.addresses[r.what], r.era)
	}
	return fmt.Sprintf("http://%s/mcp", t.upstreams[r.era])
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func accepts(ctx context.Context, address string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return c.Close()
}

func ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(url + ": " + res.Status)
	}
	return nil
}
