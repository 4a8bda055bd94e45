package store

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// harmless reports whether a line tells only of a member that is alone or new.
func harmless(message string, fields map[string]any) bool {
	switch message {
	case "Running http and grpc server on single port. This is not recommended for production.":
		return true // given even to a member that listens nowhere
	case "Failed to detect schema version", "failed to update storage version":
		// The backend of a first start has no term before its first commit, 100 ms later; etcd tries again.
		return strings.HasSuffix(fmt.Sprint(fields["error"]), "missing term information")
	}
	// The only voter asks for its own election before it has applied that it is one; raft tries again.
	return strings.HasSuffix(message, "since there are still pending configuration changes to apply")
}

// zapLogger gives etcd, which logs with zap, our log. Only warnings and errors pass.
func zapLogger(log *slog.Logger) *zap.Logger {
	return zap.New(slogCore{log})
}

// slogCore is a zap backend that writes to a slog.Logger.
type slogCore struct{ log *slog.Logger }

func (c slogCore) Enabled(l zapcore.Level) bool {
	return l >= zapcore.WarnLevel && c.log.Enabled(context.Background(), slogLevel(l))
}

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{c.log.With(attributes(decoded(fields))...)}
}

func (c slogCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := decoded(fields)
	if !harmless(e.Message, values) {
		c.log.Log(context.Background(), slogLevel(e.Level), "etcd: "+e.Message, attributes(values)...)
	}
	return nil
}

func (slogCore) Sync() error { return nil }

func slogLevel(l zapcore.Level) slog.Level {
	if l >= zapcore.ErrorLevel {
		return slog.LevelError
	}
	return slog.LevelWarn
}

// decoded are zap's fields by name.
func decoded(fields []zapcore.Field) map[string]any {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(values)
	}
	return values.Fields
}

// attributes are fields as slog's arguments.
func attributes(fields map[string]any) []any {
	args := make([]any, 0, len(fields))
	for k, v := range fields {
		args = append(args, slog.Any(k, v))
	}
	return args
}
