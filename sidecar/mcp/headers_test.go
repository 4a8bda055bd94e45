package mcp

import (
	"encoding/base64"
	"net/http"
	"net/textproto"
	"testing"
	"unicode/utf8"
)

func TestHeaderNamesAreCanonical(t *testing.T) {
	for _, name := range []string{HeaderVersion, HeaderMethod, HeaderName, HeaderSessionID, HeaderLastEventID, HeaderParamPrefix} {
		if got := http.CanonicalHeaderKey(name); got != name {
			t.Errorf("got %q, want %q", got, name)
		}
	}
}

// Value Encoding, sentence by sentence.
func TestDecodeHeaderValue(t *testing.T) {
	for _, row := range []struct {
		name, value, want string
		ok                bool
	}{
		{"plain", "ledger.post", "ledger.post", true},
		{"empty", "", "", true},
		{"inner space and tab", "a b\tc", "a b\tc", true},
		{"outer white space is HTTP's", " \tx \t", "x", true},
		{"encoded", "=?base64?IGV1LXdlc3Qg?=", " eu-west ", true},
		{"encoded and empty", "=?base64??=", "", true},
		{"encoded UTF-8", "=?base64?Z3LDvMOfZQ==?=", "grüße", true},
		{"no prefix", "IGV1?=", "IGV1?=", true},
		{"no suffix", "=?base64?IGV1", "=?base64?IGV1", true},
		{"markers in another case", "=?BASE64?IGV1?=", "=?BASE64?IGV1?=", true},
		{"markers that overlap", "=?base64?=", "=?base64?=", true},
		{"padding missing", "=?base64?Z3LDvMOfZQ?=", "", false},
		{"padding too long", "=?base64?IGV1====?=", "", false},
		{"trailing bits set", "=?base64?Z3LDvMOfZR==?=", "", false},
		{"URL alphabet", "=?base64?_-8=?=", "", false},
		{"space inside", "=?base64?IG V1?=", "", false},
		{"line break inside", "=?base64?IG\nV1?=", "", false},
		{"not UTF-8 inside", "=?base64?/w==?=", "", false},
		{"raw UTF-8", "grüße", "", false},
		{"control character", "a\x01", "", false},
		{"DEL", "a\x7f", "", false},
	} {
		got, err := DecodeHeaderValue(row.value)
		if got != row.want || (err == nil) != row.ok {
			t.Errorf("%s: DecodeHeaderValue(%q): got %q, %v; want %q, ok %v", row.name, row.value, got, err, row.want, row.ok)
		}
	}
}

func TestEncodeHeaderValueKeepsPlainValuesPlain(t *testing.T) {
	for value, want := range map[string]string{
		"ledger.post": "ledger.post", "": "", "a b": "a b", "=?base64?x": "=?base64?x",
		" eu-west ":      "=?base64?IGV1LXdlc3Qg?=",
		"grüße":          "=?base64?Z3LDvMOfZQ==?=",
		"=?base64?IA?=":  "=?base64?PT9iYXNlNjQ/SUE/PQ==?=",
		"=?base64?=":     "=?base64?PT9iYXNlNjQ/PQ==?=",
		"a\r\nX-Evil: 1": "=?base64?YQ0KWC1FdmlsOiAx?=",
	} {
		if got := EncodeHeaderValue(value); got != want {
			t.Errorf("EncodeHeaderValue(%q): got %q, want %q", value, got, want)
		}
	}
}

// Server Validation: decode, then compare exactly.
func TestMirrors(t *testing.T) {
	for _, row := range []struct {
		header, body string
		want         bool
	}{
		{"get_weather", "get_weather", true},
		{" get_weather\t", "get_weather", true},
		{"", "", true},
		{"=?base64?Z2V0?=", "get", true}, // encoding what need not be is allowed
		{"=?base64?Z3LDvMOfZQ==?=", "grüße", true},
		{"Get_weather", "get_weather", false},
		{"get_weather", "get_weathe", false},
		{"x", " x", false},
		{"file:///a%20b", "file:///a b", false},
		{"grüße", "grüße", false},
		{"=?base64?Z2V0?=", "=?base64?Z2V0?=", false},
		{"=?base64?Z2V0=?=", "get", false},
	} {
		if got := Mirrors(row.header, []byte(row.body)); got != row.want {
			t.Errorf("Mirrors(%q, %q): got %v, want %v", row.header, row.body, got, row.want)
		}
	}
}

func TestMirrorsDoesNotAllocate(t *testing.T) {
	body := []byte("get_weather_with_a_rather_long_name_that_no_stack_buffer_holds")
	name := string(body)
	if n := testing.AllocsPerRun(100, func() { Mirrors(name, body) }); n != 0 {
		t.Errorf("%v allocations for a plain name, want 0", n)
	}
}

func FuzzDecodeHeaderValue(f *testing.F) {
	for _, seed := range []string{"", "x", " x ", "=?base64?IGV1LXdlc3Qg?=", "=?base64?=", "=?base64?Z3LDvMOfZR==?=", "grüße", "a\r\nb"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if decoded, err := DecodeHeaderValue(value); err == nil {
			if !utf8.ValidString(decoded) {
				t.Errorf("DecodeHeaderValue(%q) = %q: not UTF-8", value, decoded)
			}
			again, err := DecodeHeaderValue(EncodeHeaderValue(decoded))
			if err != nil || again != decoded {
				t.Errorf("DecodeHeaderValue(EncodeHeaderValue(%q)): got %q, %v", decoded, again, err)
			}
			if !Mirrors(value, []byte(decoded)) {
				t.Errorf("Mirrors(%q, %q): got false", value, decoded)
			}
		} else if Mirrors(value, []byte(value)) {
			t.Errorf("Mirrors(%q, itself): got true for a malformed value", value)
		}
		if !utf8.ValidString(value) {
			return
		}
		encoded := EncodeHeaderValue(value)
		if decoded, err := DecodeHeaderValue(encoded); err != nil || decoded != value {
			t.Errorf("DecodeHeaderValue(%q): got %q, %v; want %q", encoded, decoded, err, value)
		}
		if textproto.TrimString(encoded) != encoded || !isPlain(encoded) {
			t.Errorf("EncodeHeaderValue(%q) = %q: not fit for a header", value, encoded)
		}
	})
}

func BenchmarkMirrors(b *testing.B) {
	encoded := encodedPrefix + base64.StdEncoding.EncodeToString([]byte("grüße")) + encodedSuffix
	for _, row := range []struct{ name, header, body string }{
		{"plain", "ledger.post", "ledger.post"}, {"encoded", encoded, "grüße"},
	} {
		b.Run(row.name, func(b *testing.B) {
			body := []byte(row.body)
			b.ReportAllocs()
			for b.Loop() {
				if !Mirrors(row.header, body) {
					b.Fatal("no mirror")
				}
			}
		})
	}
}
