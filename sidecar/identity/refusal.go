package identity

// Refusal is a caller that is not let in, or not so far.
type Refusal struct {
	Status     int    // HTTP: 400, 401, 403 or 503
	Challenge  string // the value of WWW-Authenticate (RFC 6750, section 3; RFC 9728, section 5.1), or empty
	RetryAfter int    // seconds; 0 says nothing
	Reason     string // short and stable: a metric label
	Message    string // for the caller; holds nothing of what it sent
}

// Error implements error.
func (r *Refusal) Error() string { return r.Message }
