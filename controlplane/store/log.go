package store

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// singlePort is a warning about listeners that etcd gives even to a member without any.
const singlePort = "Running http and grpc server on single port. This is not recommended for production."

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
	return slogCore{c.log.With(attributes(fields)...)}
}

func (c slogCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && e.Message != singlePort {
		return to.AddCore(e, c)
	}
	return to
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.Log(context.Background(), slogLevel(e.Level), "etcd: "+e.Message, attributes(fields)...)
	return nil
}

func (slogCore) Sync() error { return nil }

func slogLevel(l zapcore.Level) slog.Level {
	if l >= zapcore.ErrorLevel {
		return slog.LevelError
	}
	return slog.LevelWarn
}

// attributes are zap's fields as slog's arguments.
func attributes(fields []zapcore.Field) []any {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(values)
	}
	args := make([]any, 0, len(values.Fields))
	for k, v := range values.Fields {
		args = append(args, slog.Any(k, v))
	}
	return args
}
