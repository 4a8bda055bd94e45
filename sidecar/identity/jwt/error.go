package jwt

import "errors"

// Reason is why a token is refused, as a metric label.
type Reason string

// Reasons. Those from Expired on are of tokens whose signature is good.
const (
	Malformed  Reason = "malformed"     // not a signed token, or not one way to read it, or too large
	Algorithm  Reason = "algorithm"     // not one that the provider takes, or not one for that key
	KeyUnknown Reason = "key_unknown"   // the issuer has no such key
	Signature  Reason = "signature"     // not what the key signs
	Issuer     Reason = "issuer"        // of none of the issuers
	Expired    Reason = "expired"       // exp
	NotYet     Reason = "not_yet"       // nbf, or iat in the future
	Audience   Reason = "audience"      // for somebody else (RFC 8707)
	Claims     Reason = "claims"        // a claim is absent or of a wrong type
	Withdrawn  Reason = "key_withdrawn" // its key is not its issuer's any more
	Revoked    Reason = "revoked"       // by a Revocation; found by who asks Revocations
)

// Error is a token that is refused. Its text is fixed for each Reason and has nothing of the token.
type Error struct {
	Reason Reason
}

func (e *Error) Error() string { return texts[e.Reason] }

// texts may be shown to callers.
var texts = map[Reason]string{
	Malformed:  "the token is malformed",
	Algorithm:  "the token is signed with an algorithm that is not accepted",
	KeyUnknown: "the token is signed with a key that its issuer does not have",
	Signature:  "the token's signature is wrong",
	Issuer:     "the token's issuer is not accepted",
	Expired:    "the token has expired",
	NotYet:     "the token is not valid yet",
	Audience:   "the token is for another audience",
	Claims:     "the token lacks a claim, or has one of a wrong type",
	Withdrawn:  "the token's key was withdrawn",
	Revoked:    "the token was revoked",
}

// ErrUnavailable is that a token cannot be judged now: its issuer's keys cannot be had, or are older than the provider's
// `stale` allows. The caller may try again in some seconds.
var ErrUnavailable = errors.New("the issuer's keys cannot be had now")

// refusals are the Errors, made once: a stranger's bad tokens leave nothing to collect.
var refusals = func() map[Reason]*Error {
	all := make(map[Reason]*Error, len(texts))
	for r := range texts {
		all[r] = &Error{r}
	}
	return all
}()

func refuse(r Reason) error { return refusals[r] }
