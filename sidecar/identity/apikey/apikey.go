// Package apikey makes API keys, and knows them again by their hashes.
//
// A key is "outrigger_", 43 random letters and digits (256 bits), and six that are a checksum of all before, so that people
// and scanners recognise one, and one that was cut or mistyped is told from one that is not known. Only its hash is kept.
//
// Everything here is safe for concurrent use. Not here: where a request carries a key, and what its Key allows.
package apikey

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"hash/crc32"
	"strings"
)

// The parts of a key. They are a promise to keys that were given out.
const (
	Prefix      = "outrigger_"
	randomLen   = 43
	checksumLen = 6
	digits      = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// New makes a key.
func New() string {
	key := make([]byte, 0, len(Prefix)+randomLen+checksumLen)
	key = append(key, Prefix...)
	var random [2 * randomLen]byte
	for len(key) < len(Prefix)+randomLen {
		rand.Read(random[:]) // never fails
		for _, b := range random {
			// Of the 256 values the first 248 give each digit equally often.
			if b < 4*uint8(len(digits)) && len(key) < len(Prefix)+randomLen {
				key = append(key, digits[int(b)%len(digits)])
			}
		}
	}
	return string(key) + checksum(string(key))
}

// Valid reports whether a text has the form and the checksum of a key. It may be one that nobody was ever given.
func Valid(text string) bool {
	if len(text) != len(Prefix)+randomLen+checksumLen || !strings.HasPrefix(text, Prefix) {
		return false
	}
	end := len(text) - checksumLen
	return text[end:] == checksum(text[:end])
}

// checksum is the CRC-32 (IEEE) of a text in checksumLen digits.
func checksum(text string) string {
	var out [checksumLen]byte
	sum := crc32.ChecksumIEEE([]byte(text))
	for i := len(out) - 1; i >= 0; i-- {
		out[i] = digits[sum%uint32(len(digits))]
		sum /= uint32(len(digits))
	}
	return string(out[:])
}

// Hash is what is kept of a key, a Key's spec.hash: its SHA-256 in hex, or with a pepper its HMAC-SHA-256.
func Hash(key string, pepper []byte) string {
	sum := digest([]byte(key), pepper)
	return hex.EncodeToString(sum[:])
}

func digest(key, pepper []byte) (sum [sha256.Size]byte) {
	if len(pepper) == 0 {
		return sha256.Sum256(key)
	}
	mac := hmac.New(sha256.New, pepper)
	mac.Write(key)
	mac.Sum(sum[:0])
	return sum
}
