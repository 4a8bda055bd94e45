package report

import (
	"math"
	"strconv"
	"strings"
	"unicode"
)

// maxCell bounds a text in a table or heading, in characters.
const maxCell = 200

// plain is s in one line, without what does not print, and cut at most characters.
func plain(s string, most int) string {
	var b strings.Builder
	n := 0
	for _, word := range strings.Fields(s) {
		if n > 0 {
			b.WriteByte(' ')
			n++
		}
		for _, r := range word {
			if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
				continue
			}
			if n == most {
				return b.String() + "…"
			}
			b.WriteRune(r)
			n++
		}
	}
	return b.String()
}

// markdown escapes what would be more than text in a cell, a heading or a link. An underscore within a word, as names
// of figures have, is text already.
var markdown = strings.NewReplacer(
	"&", "&amp;", "<", "&lt;", ">", "&gt;",
	`\`, `\\`, "|", "&#124;", "`", "\\`", "*", `\*`, "[", `\[`, "]", `\]`, "~", `\~`, "$", `\$`,
)

// escape is a stranger's s as Markdown that shows it and does nothing else, in one line.
func escape(s string) string { return markdown.Replace(plain(s, maxCell)) }

// html escapes what would be more than text in an HTML element of the page.
var html = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// prose is a scenario's own Markdown as one paragraph: code, emphasis and links work, HTML and blocks do not.
func prose(s string) string {
	s = plain(s, 4000)
	parts := strings.Split(s, "`")
	closed := len(parts)%2 == 1 && !strings.Contains(s, "``")
	for i := range parts {
		if code := closed && i%2 == 1; !code {
			parts[i] = html.Replace(parts[i])
		}
	}
	return strings.Join(parts, "`")
}

// fenced is s as a code block whose fence is longer than any in it.
func fenced(s string) string {
	fence := "```"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	return fence + "\n" + strings.TrimRight(s, "\n") + "\n" + fence + "\n"
}

// number is v with digits after the point and thousands set apart: 38,400 or 1.50.
func number(v float64, digits int) string {
	if math.Abs(v) >= 1e15 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return grouped(strconv.FormatFloat(v, 'f', max(0, min(digits, 6)), 64))
}

// limit is v with as many digits as it needs.
func limit(v float64) string {
	if math.Abs(v) >= 1e15 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return grouped(strconv.FormatFloat(v, 'f', -1, 64))
}

// grouped sets apart the thousands of a decimal number.
func grouped(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	whole, fraction, _ := strings.Cut(s, ".")
	if fraction != "" {
		fraction = "." + fraction
	}
	for at := len(whole) - 3; at > 0; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	return sign + whole + fraction
}

// text is a median with its range, "39.1 [37.0..41.2]", or a dash.
func (s Spread) text(digits int) string {
	switch {
	case s.N == 0:
		return "–"
	case s.N == 1 || s.Min == s.Max:
		return number(s.Median, digits)
	default:
		return number(s.Median, digits) + " [" + number(s.Min, digits) + ".." + number(s.Max, digits) + "]"
	}
}
