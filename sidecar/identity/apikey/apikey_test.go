package apikey

import (
	"regexp"
	"strings"
	"testing"
)

func TestANewKeyIsRecognised(t *testing.T) {
	form := regexp.MustCompile(`^outrigger_[0-9A-Za-z]{49}$`)
	seen := map[string]bool{}
	for range 1000 {
		key := New()
		if !form.MatchString(key) || !Valid(key) || seen[key] {
			t.Fatalf("%q: of the form %v, valid %v, made before %v", key, form.MatchString(key), Valid(key), seen[key])
		}
		seen[key] = true
	}
}

func TestWhatIsNotAKeyIsNotValid(t *testing.T) {
	const key = "outrigger_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefg2WxNzr"
	good := key[:len(key)-checksumLen] + checksum(key[:len(key)-checksumLen])
	if !Valid(good) {
		t.Fatalf("%q is not valid", good)
	}
	for i := len(Prefix); i < len(good); i++ { // CRC-32 finds every change of one letter
		other := byte('x')
		if good[i] == other {
			other = 'y'
		}
		if text := good[:i] + string(other) + good[i+1:]; Valid(text) {
			t.Errorf("%q, with one letter changed, is valid", text)
		}
	}
	for _, text := range []string{"", Prefix, good[:len(good)-1], good + "0", strings.ToUpper(good), " " + good, "Outrigger_" + good[len(Prefix):]} {
		if Valid(text) {
			t.Errorf("%q is valid", text)
		}
	}
}

func TestAHashIsOfTheKeyAndThePepper(t *testing.T) {
	for _, row := range []struct{ key, pepper, want string }{
		// FIPS 180-2, appendix B.1.
		{"abc", "", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		// RFC 4231, test case 2.
		{"what do ya want for nothing?", "Jefe", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
	} {
		if got := Hash(row.key, []byte(row.pepper)); got != row.want {
			t.Errorf("%q with pepper %q: %s, want %s", row.key, row.pepper, got, row.want)
		}
	}
}
