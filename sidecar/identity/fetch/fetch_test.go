package fetch

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func client(t *testing.T, o Options) *http.Client {
	t.Helper()
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// authority writes the certificate that a TLS test server is known by.
func authority(t *testing.T, s *httptest.Server) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func serve(t *testing.T, overTLS bool, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = nil
	if overTLS {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func TestOnlyPublicAddressesAreAskedUnlessPrivateOnesMay(t *testing.T) {
	for address, want := range map[string]struct{ public, unicast bool }{
		"93.184.216.34":          {true, true},
		"2606:2800:220:1::1":     {true, true},
		"10.0.0.1":               {false, true},
		"172.16.3.4":             {false, true},
		"192.168.1.1":            {false, true},
		"127.0.0.1":              {false, true},
		"::1":                    {false, true},
		"169.254.169.254":        {false, true},
		"fe80::1":                {false, true},
		"fd00::1":                {false, true},
		"100.64.0.1":             {false, true},
		"198.18.0.1":             {false, true},
		"64:ff9b::5db8:d822":     {true, true},  // 93.184.216.34 behind a translator
		"64:ff9b::a9fe:a9fe":     {false, true}, // 169.254.169.254 likewise
		"2002:a9fe:a9fe::1":      {false, true},
		"2001:0:a9fe:a9fe::1":    {false, true},
		"0.0.0.0":                {false, false},
		"::":                     {false, false},
		"224.0.0.1":              {false, false},
		"ff02::1":                {false, false},
		"255.255.255.255":        {false, false},
		"::ffff:169.254.169.254": {false, true},
		"::ffff:93.184.216.34":   {true, true},
	} {
		a := netip.MustParseAddr(address).Unmap() // as transport has it
		if isPublic(a) != want.public || isUnicast(a) != want.unicast {
			t.Errorf("%s: public %v, unicast %v, want %v", address, isPublic(a), isUnicast(a), want)
		}
	}
}

func TestWhereAClientMayGo(t *testing.T) {
	ok := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "yes") }
	plain, secure := serve(t, false, ok), serve(t, true, ok)
	secure.Config.ErrorLog = nil
	_, port, _ := net.SplitHostPort(secure.Listener.Addr().String())
	for _, test := range []struct {
		name, url string
		o         Options
		want      error // nil: it is answered
	}{
		{"plain HTTP to loopback", plain.URL, Options{}, nil},
		{"plain HTTP elsewhere", "http://192.0.2.1/", Options{PrivateAddresses: true}, ErrAddress},
		{"TLS to loopback", secure.URL, Options{CAFile: authority(t, secure)}, ErrAddress},
		{"TLS to loopback by a name", "https://localhost:" + port, Options{CAFile: authority(t, secure)}, ErrAddress},
		{"TLS to loopback, allowed", secure.URL, Options{CAFile: authority(t, secure), PrivateAddresses: true}, nil},
		{"the metadata of a cloud", "https://169.254.169.254/latest", Options{}, ErrAddress},
		{"a file", "file:///etc/hostname", Options{}, ErrAddress},
	} {
		t.Run(test.name, func(t *testing.T) {
			res, err := client(t, test.o).Get(test.url)
			if err == nil {
				res.Body.Close()
			}
			if !errors.Is(err, test.want) || err == nil && res.StatusCode != 200 {
				t.Errorf("GET %s: %v, want %v", test.url, err, test.want)
			}
		})
	}
}

func TestAServerWithoutATrustedCertificateIsNotAsked(t *testing.T) {
	asked := false
	s := serve(t, true, func(http.ResponseWriter, *http.Request) { asked = true })
	if _, err := client(t, Options{PrivateAddresses: true}).Get(s.URL); err == nil || asked {
		t.Errorf("error %v, asked %v, want an error before anything is asked", err, asked)
	}
}

func TestARedirectIsAnAnswerAndNotFollowed(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	})
	res, err := client(t, Options{}).Get(s.URL)
	if err != nil || res.StatusCode != http.StatusFound {
		t.Fatalf("%v, %v, want the redirect itself", res, err)
	}
	res.Body.Close()
}

func TestAnAnswerIsReadUpToItsBound(t *testing.T) {
	for _, test := range []struct {
		sent int
		want error
	}{{9, nil}, {10, nil}, {11, ErrTooLong}, {1 << 20, ErrTooLong}} {
		s := serve(t, false, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, strings.Repeat("x", test.sent)) })
		res, err := client(t, Options{MaxBytes: 10}).Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if !errors.Is(err, test.want) || len(b) > 10 {
			t.Errorf("of %d bytes came %d and %v, want %v", test.sent, len(b), err, test.want)
		}
	}
}

func TestAServerThatHangsIsGivenUp(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		select { // the head came, the body does not
		case <-r.Context().Done():
		case <-release:
		}
	})
	defer close(release)
	res, err := client(t, Options{Timeout: 50 * time.Millisecond}).Get(s.URL)
	if err == nil {
		_, err = io.ReadAll(res.Body)
		res.Body.Close()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline's", err)
	}
}

func TestAFileWithoutCertificatesIsRefused(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{empty, empty + ".not"} {
		if _, err := New(Options{CAFile: file}); err == nil || !strings.HasPrefix(err.Error(), "caFile: ") {
			t.Errorf("%s: %v, want an error that begins with caFile", file, err)
		}
	}
}
