package tolegacy

import (
	"fmt"
	"strconv"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// inputRequired is the response that asks a client (basic/patterns/mrtr, InputRequiredResult).
func inputRequired(id []byte, questions []question, requestState string) []byte {
	b := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{`, id)
	for i, q := range questions {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `%q:{"method":%q,"params":%s}`, q.key, q.method, q.params)
	}
	b = append(b, `},"requestState":`...)
	return append(rawjson.AppendString(b, requestState), "}}"...)
}

// askForURLsLocked turns 2025-11-25's error -32042 into questions. Nothing is held for them: the server refused the call,
// so the retry is its first time. body and err are nil when the error names no URLs.
func (k *call) askForURLsLocked(m *mcp.Message, id []byte) (body []byte, status int, err error) {
	var questions []question
	list := rawjson.Find(m.Raw, rawjson.Find(m.Raw, m.Error, "data"), "elicitations")
	if !rawjson.IsArray(list.Of(m.Raw)) {
		return nil, 0, nil
	}
	for e := range rawjson.Elements(m.Raw, list) {
		if len(questions) == maxQuestions || !rawjson.Find(m.Raw, e, "url").Present() {
			return nil, 0, nil
		}
		questions = append(questions, question{
			key: "q" + strconv.Itoa(len(questions)+1), method: mcp.MethodElicit, params: urlParams(m.Raw, e),
		})
	}
	switch {
	case questions == nil:
		return nil, 0, nil
	case !k.declared.elicitURL:
		return refusedWith(missingCapability(needsURL))(id)
	case k.round > k.server.settings.maxRounds:
		return nil, 0, k.server.fault(upstream.Overloaded, "asked its client more often than a call may", nil)
	}
	k.digestLocked()
	requestState := k.server.sealState(k.binding, state{
		Round: k.round, Principal: principalDigest(k.principal), Digest: k.digest,
	})
	return inputRequired(id, questions, requestState), 200, nil
}

// urlParams are those of an elicitation of the mode url.
func urlParams(raw []byte, elicitation mcp.Span) []byte {
	params, _ := rawjson.Rewrite(nil, raw, elicitation, func(p rawjson.Member) ([]byte, bool) {
		return nil, string(p.Name) != "elicitationId" && string(p.Name) != "mode"
	})
	return rawjson.Splice(params, mcp.Edit{Span: mcp.Span{Start: 1, End: 1}, With: []byte(`"mode":"url",`)})
}
