// Package identity finds out who calls: API keys, JSON web tokens and client certificates, each judged by the provider of
// a binding's Identity that takes what the request carries.
//
// A bad credential is refused, never tried with another provider, and never falls back to the anonymous. What a good one
// proves is a Principal. Not here: what a principal may do (package policy).
package identity
