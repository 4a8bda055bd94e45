// Package record is what a benchmark run writes down, as lines of JSON: the environment, each scenario with how it is to
// be read, a row for each measurement, and how it ended. The file describes itself, so that a report or a comparison
// needs nothing but it.
//
// Other programs read these lines: add fields; never rename one or change its unit.
package record

import "time"

// Kinds of line.
const (
	KindEnvironment = "environment"
	KindScenario    = "scenario"
	KindRow         = "row"
	KindOutcome     = "outcome"
)

// Line is one line of a run's rows.jsonl. Exactly one of the pointers is set, the one that Kind names.
type Line struct {
	Kind        string       `json:"kind"`
	Environment *Environment `json:"environment,omitempty"`
	Scenario    *Scenario    `json:"scenario,omitempty"`
	Row         *Row         `json:"row,omitempty"`
	Outcome     *Outcome     `json:"outcome,omitempty"`
}

// Environment is what a run was made on and with.
type Environment struct {
	Time       time.Time         `json:"time"`
	Command    string            `json:"command"` // as it was typed
	Commit     string            `json:"commit"`  // of this repository, with "+" when the tree was changed
	Machine    string            `json:"machine"` // the processor's name
	Cores      int               `json:"cores"`
	MemoryMiB  int               `json:"memoryMiB"`
	Kernel     string            `json:"kernel"`
	Go         string            `json:"go"`
	Versions   map[string]string `json:"versions"` // by program: nginx, sidecar, ...
	Builds     map[string]string `json:"builds"`   // SHA-256 of each program that was started, by name
	Pinned     map[string]string `json:"pinned"`   // cores by process, as taskset takes them; absent: not pinned
	Config     map[string]string `json:"config"`   // by process: the configuration it ran with
	NoiseLimit float64           `json:"noiseLimit"`
}

// Outcome is how a run ended: its last line. A run that was killed has none.
type Outcome struct {
	Problem string `json:"problem,omitempty"` // why the run is not valid; empty: it is
	Again   int    `json:"again"`             // rows that were discarded because of noise, and measured again
	Noisy   int    `json:"noisy"`             // rows that stayed noisy to the last try, counted or not
	Failed  int    `json:"failed"`            // rows with failures or wrong answers
}

// Scenario says what was measured and how its rows are to be read.
type Scenario struct {
	Name     string   `json:"name"`
	Title    string   `json:"title"`
	Question string   `json:"question"` // what it answers, in a sentence
	Method   string   `json:"method"`   // what is done, in a few sentences; Markdown
	Fields   []string `json:"fields"`   // of a row's case, in the order of columns
	Figures  []Figure `json:"figures"`
	Charts   []Chart  `json:"charts,omitempty"`
	Targets  []Target `json:"targets,omitempty"`
}

// Figure is one of a row's values.
type Figure struct {
	Name   string `json:"name"` // with its unit: cpu_us, calls_s, rss_mib, ratio_nginx
	Title  string `json:"title"`
	Better string `json:"better,omitempty"` // "lower" or "higher"; empty: neither
	Digits int    `json:"digits"`           // after the point
}

// Chart is a picture of one figure: lines or bars over a field, one for each value of Series.
type Chart struct {
	Name   string            `json:"name"` // of the file, without extension
	Title  string            `json:"title"`
	Kind   string            `json:"kind"` // "bar" or "line"
	X      string            `json:"x"`    // a field, or "subject"
	Y      string            `json:"y"`    // a figure
	Series string            `json:"series"`
	Where  map[string]string `json:"where,omitempty"` // only rows whose case has these values
	LogX   bool              `json:"logX,omitempty"`
	LogY   bool              `json:"logY,omitempty"`
}

// Target is a figure to reach: the median over rounds of the rows that Where and Subject choose.
type Target struct {
	Name    string            `json:"name"`
	Figure  string            `json:"figure"`
	Subject string            `json:"subject"`
	Where   map[string]string `json:"where,omitempty"`
	Most    float64           `json:"most,omitempty"`  // 0: no upper limit
	Least   float64           `json:"least,omitempty"` // 0: no lower limit
	Gate    float64           `json:"gate,omitempty"`  // the value that fails CI; 0: not gated
}

// Row is one measurement of one subject in one case.
type Row struct {
	Scenario  string             `json:"scenario"`
	Case      map[string]string  `json:"case"`    // by field: era=stateless, conns=64
	Subject   string             `json:"subject"` // direct, nginx, sidecar, or a peer's name
	Round     int                `json:"round"`   // from 1
	Values    map[string]float64 `json:"values"`  // by figure
	Load      *Load              `json:"load,omitempty"`
	Usage     []Usage            `json:"usage,omitempty"` // one for each process
	Host      Host               `json:"host"`
	Discarded string             `json:"discarded,omitempty"` // why this row does not count; empty: it does
}

// Load is what the load generator found: its line on standard output with -json.
type Load struct {
	Calls        int64     `json:"calls"`    // answered, and rightly
	Failures     int64     `json:"failures"` // refused, cut short or timed out
	Wrong        int64     `json:"wrong"`    // answered with what is not the answer
	Unsent       int64     `json:"unsent"`   // open loop: due, but never sent since every connection was busy till the end
	FirstFailure string    `json:"firstFailure,omitempty"`
	Connections  int       `json:"connections"`
	Events       int64     `json:"events,omitempty"` // of streamed answers and idle streams
	Began        time.Time `json:"began,omitzero"`   // when measuring began, after set-up and warm-up
	Seconds      float64   `json:"seconds"`          // measured, warm-up not counted
	SetUpSeconds float64   `json:"setUpSeconds"`     // to open connections, sessions and streams
	CallsPerS    float64   `json:"callsPerS"`
	Intended     float64   `json:"intendedPerS,omitempty"` // open loop: the rate asked for
	Latency      Latency   `json:"latency"`
	FirstEvent   Latency   `json:"firstEvent,omitzero"` // streamed answers: until the first event was read
	CPUSeconds   float64   `json:"cpuSeconds"`          // user and system time of the load generator, while it measured
	Histogram    string    `json:"histogram,omitempty"` // of latency in nanoseconds: HdrHistogram V2, compressed, base64
}

// Latency is a distribution in microseconds: in a closed loop from sending to the whole answer, in an open loop from
// the time a call was due.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	P9999 float64 `json:"p9999"`
	Max   float64 `json:"max"`
}

// Usage is what one process, with its threads and children, used between two moments; sizes are at the later one.
type Usage struct {
	Process             string  `json:"process"` // sidecar, nginx, upstream, load, controlplane, redis, or a peer's name
	UserSeconds         float64 `json:"userSeconds"`
	SystemSeconds       float64 `json:"systemSeconds"`
	RSSMiB              float64 `json:"rssMiB"`
	PeakRSSMiB          float64 `json:"peakRSSMiB"` // since the process began
	Threads             int     `json:"threads"`
	VoluntarySwitches   int64   `json:"voluntarySwitches"`
	InvoluntarySwitches int64   `json:"involuntarySwitches"`
}

// Host is the machine while a row was measured: shares of all its cores' time, 0 to 1.
type Host struct {
	Others float64 `json:"others"` // used by processes that are not the run's
	Steal  float64 `json:"steal"`  // taken by the hypervisor
	Load1  float64 `json:"load1"`  // the load average over a minute, at the end
}
