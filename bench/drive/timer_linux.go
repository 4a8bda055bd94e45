package drive

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// timer sleeps to the microsecond. The runtime's own timers are late by up to a millisecond on an idle machine, since
// its poller waits in whole milliseconds; a timer that is a file wakes it when it is due (timerfd_create(2)).
type timer struct {
	fd   int
	file *os.File // nil: the system has no such timers left, and sleeping must do
	buf  [8]byte
}

func newTimer() *timer {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return &timer{}
	}
	return &timer{fd: fd, file: os.NewFile(uintptr(fd), "timer")}
}

// sleepUntil returns when it is time, never before, or when ctx ends.
func (t *timer) sleepUntil(ctx context.Context, at time.Time) {
	d := time.Until(at)
	if d <= 0 {
		return
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if t.file == nil || unix.TimerfdSettime(t.fd, 0, &spec, nil) != nil {
		sleep(ctx, d)
		return
	}
	if _, err := t.file.Read(t.buf[:]); err != nil {
		sleep(ctx, time.Until(at))
	}
}

// wake ends sleepUntil.
func (t *timer) wake() {
	if t.file != nil {
		t.file.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // then it sleeps on
	}
}

func (t *timer) close() {
	if t.file != nil {
		t.file.Close()
	}
}
