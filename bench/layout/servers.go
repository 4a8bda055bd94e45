package layout

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Paths of the endpoints. nginx passes answers on as they come only at StreamPath; other proxies serve MCPPath only.
const (
	MCPPath    = "/mcp"
	StreamPath = "/stream"
)

var (
	//go:embed nginx.conf
	nginxConf string
	//go:embed sidecar.yaml
	sidecarYAML string
)

// SidecarYAML is a configuration with one binding at MCPPath, in front of one server, and all defaults.
func SidecarYAML(upstreamURL string) string {
	return strings.ReplaceAll(sidecarYAML, "{UPSTREAM}", upstreamURL)
}

// Null starts the MCP server that does nothing. One serves both eras.
func (l *Layout) Null(ctx context.Context, args ...string) (*Process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	p, err := l.start(ctx, spec{name: "upstream", cores: l.pins.Rest, command: append([]string{l.programs.Null}, args...), stdout: w})
	if err != nil {
		r.Close()
		return nil, err
	}
	address, err := listening(ctx, r)
	if err != nil {
		p.Stop()
		return nil, fmt.Errorf("start the upstream: %w (its log is %s)", err, p.Log)
	}
	p.Address, p.URL = address, "http://"+address+MCPPath
	return p, nil
}

// listening reads "listening ADDRESS", and keeps reading so that its writer never waits.
func listening(ctx context.Context, r *os.File) (string, error) {
	r.SetReadDeadline(deadline(ctx, readyTimeout))
	lines := bufio.NewReader(r)
	line, err := lines.ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "listening ")
	if err != nil || !ok {
		r.Close()
		return "", fmt.Errorf("it said %q: %w", line, errors.Join(err, errors.New(`want "listening ADDRESS"`)))
	}
	r.SetReadDeadline(time.Time{})
	go func() {
		defer r.Close()
		io.Copy(io.Discard, lines)
	}()
	return address, nil
}

// deadline is the earlier of a context's deadline and a time from now.
func deadline(ctx context.Context, d time.Duration) time.Time {
	at := time.Now().Add(d)
	if t, ok := ctx.Deadline(); ok && t.Before(at) {
		return t
	}
	return at
}

// Nginx starts nginx, one worker, in front of a server: the measure for every proxy.
func (l *Layout) Nginx(ctx context.Context, upstream *Process) (*Process, error) {
	address, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	text := strings.NewReplacer("{DIR}", l.dir, "{PID}", filepath.Join(l.dir, "nginx-"+address+".pid"),
		"{ADDRESS}", address, "{UPSTREAM}", upstream.Address).Replace(nginxConf)
	file, err := l.write("nginx", ".conf", text)
	if err != nil {
		return nil, err
	}
	return l.start(ctx, spec{name: "nginx", cores: l.pins.Proxy, address: address, path: MCPPath,
		command: []string{l.programs.Nginx, "-c", file, "-e", file + ".err"}, ready: accepts(address)})
}

// Sidecar starts a sidecar with a configuration of its own, or with none where that is empty and args say where it is
// to come from. It is ready when its /readyz says so; its endpoint is taken to be at MCPPath.
func (l *Layout) Sidecar(ctx context.Context, yaml string, args ...string) (*Process, error) {
	address, err1 := FreeAddress()
	admin, err2 := FreeAddress()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	command := []string{l.programs.Sidecar, "--listen", address, "--admin", admin}
	if yaml != "" {
		file, err := l.write("sidecar", ".yaml", yaml)
		if err != nil {
			return nil, err
		}
		command = append(command, "--config", file)
	}
	return l.start(ctx, spec{name: "sidecar", cores: l.pins.Proxy, address: address, admin: admin, path: MCPPath,
		command: append(command, args...), ready: answers("http://" + admin + "/readyz")})
}

// Peer starts any other proxy in front of a server: a shell's command line in which {UPSTREAM} stands for the server's
// URL and {PORT} for the port of 127.0.0.1 to listen on. Its endpoint is taken to be at MCPPath.
func (l *Layout) Peer(ctx context.Context, name, command, upstreamURL string) (*Process, error) {
	address, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(address)
	line := strings.NewReplacer("{UPSTREAM}", upstreamURL, "{PORT}", port).Replace(command)
	return l.start(ctx, spec{name: name, cores: l.pins.Proxy, address: address, path: MCPPath,
		command: []string{"bash", "-c", "exec " + line}, ready: accepts(address)})
}

// ControlPlane starts a control plane with its state in the layout's folder. Its Address is where sidecars dial, Admin
// its health, and the second value the address of its management API.
func (l *Layout) ControlPlane(ctx context.Context, args ...string) (p *Process, api string, err error) {
	xds, err1 := FreeAddress()
	admin, err2 := FreeAddress()
	api, err3 := FreeAddress()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, "", err
	}
	l.mu.Lock()
	data := l.file("controlplane", ".data")
	l.mu.Unlock()
	command := []string{l.programs.ControlPlane, "--data-dir", data, "--api", api, "--xds", xds, "--admin", admin}
	p, err = l.start(ctx, spec{name: "controlplane", cores: l.pins.Rest, address: xds, admin: admin,
		command: append(command, args...), ready: answers("http://" + admin + "/readyz")})
	return p, api, err
}

// Redis starts a Redis that keeps nothing on disk.
func (l *Layout) Redis(ctx context.Context, args ...string) (*Process, error) {
	address, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(address)
	command := []string{l.programs.Redis, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", l.dir}
	return l.start(ctx, spec{name: "redis", cores: l.pins.Rest, address: address, command: append(command, args...),
		ready: accepts(address)})
}

// Running tells the layout of something that runs already. With the id of its process, what that uses is measured
// as if the layout had started it; without, and on this machine, others' use of it cannot be judged.
func (l *Layout) Running(name, endpoint string, pid int) (*Process, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%q is not a URL with a host", endpoint)
	}
	p := &Process{Name: name, Address: u.Host, URL: endpoint, layout: l, pid: pid}
	if pid != 0 {
		if _, err := usageOf(pid); err != nil {
			return nil, fmt.Errorf("process %d: %w", pid, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.processes = append(l.processes, p)
	l.uncounted = l.uncounted || pid == 0 && isLoopback(u.Hostname())
	return p, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// answers passes when a GET of a URL is answered with 200.
func answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		req.Close = true
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
}
