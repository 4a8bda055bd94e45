package layout

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// ticksPerSecond is the unit of CPU times under /proc, fixed for user space on Linux (USER_HZ).
const ticksPerSecond = 100

const mib = 1 << 20

// usageOf is what a process, its threads and its children have used since they began.
func usageOf(pid int) (record.Usage, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return record.Usage{}, err
	}
	stat, err := p.Stat()
	if err != nil {
		return record.Usage{}, err
	}
	u := record.Usage{
		UserSeconds:   ticks(int(stat.UTime) + stat.CUTime),
		SystemSeconds: ticks(int(stat.STime) + stat.CSTime),
		RSSMiB:        float64(stat.ResidentMemory()) / mib,
		Threads:       stat.NumThreads,
	}
	if status, err := p.NewStatus(); err == nil { // a process that has ended, but is not waited for, has none
		u.PeakRSSMiB = float64(status.VmHWM) / mib
	}
	for _, tid := range threads(pid) {
		addThread(&u, p, tid)
	}
	return u, nil
}

// addThread adds a thread's context switches, and what its children have used. One that has ended adds nothing.
func addThread(u *record.Usage, p procfs.Proc, tid int) {
	if t, err := p.Thread(tid); err == nil {
		if status, err := t.NewStatus(); err == nil {
			u.VoluntarySwitches += int64(status.VoluntaryCtxtSwitches)
			u.InvoluntarySwitches += int64(status.NonVoluntaryCtxtSwitches)
		}
	}
	for _, child := range childrenOf(p.PID, tid) {
		if c, err := usageOf(child); err == nil {
			add(u, c)
		}
	}
}

// threads are the ids of a process's threads.
func threads(pid int) (ids []int) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil // it has ended
	}
	for _, e := range entries {
		if id, err := strconv.Atoi(e.Name()); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// childrenOf are the living children that a thread has started (proc_pid_task(5), children).
func childrenOf(pid, tid int) (pids []int) {
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, tid))
	if err != nil {
		return nil // the thread has ended, and its children are another's
	}
	for f := range strings.FieldsSeq(string(list)) {
		if child, err := strconv.Atoi(f); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// add puts what a child uses to what its parent does.
func add(u *record.Usage, child record.Usage) {
	u.UserSeconds += child.UserSeconds
	u.SystemSeconds += child.SystemSeconds
	u.RSSMiB += child.RSSMiB
	u.PeakRSSMiB += child.PeakRSSMiB
	u.Threads += child.Threads
	u.VoluntarySwitches += child.VoluntarySwitches
	u.InvoluntarySwitches += child.InvoluntarySwitches
}

func ticks(n int) float64 { return float64(n) / ticksPerSecond }

// cpuSeconds is the CPU time that a process and its children have used, living or not.
func cpuSeconds(pid int) (float64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	if err != nil {
		return 0, err
	}
	sum := ticks(int(stat.UTime) + int(stat.STime) + stat.CUTime + stat.CSTime)
	for _, tid := range threads(pid) {
		for _, child := range childrenOf(pid, tid) {
			if c, err := cpuSeconds(child); err == nil { // it may have ended just now
				sum += c
			}
		}
	}
	return sum, nil
}
