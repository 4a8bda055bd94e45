package stdio

import (
	"context"
	"errors"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func (s *Server) known() mcp.Eras {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.eras
}

// learn keeps a verdict, unless the configuration gave one; 0 takes it back.
func (s *Server) learn(eras mcp.Eras, skipProbe bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipProbe = skipProbe
	if eras != 0 {
		s.split = eras == mcp.EraSet(mcp.Legacy, mcp.Stateless)
	}
	if s.fixed == 0 {
		s.eras = eras
	}
}

// spawn starts a process that nobody has said anything to.
func (s *Server) spawn(r router) (*pipe, error) {
	proc, err := s.command.start(s.log)
	if err != nil {
		return nil, s.fault(upstream.Unreachable, startFailure(err), err)
	}
	log := s.log.With("pid", proc.pid)
	log.Info("server started")
	return newPipe(s.name, log, proc, s.maxMessage, r), nil
}

// launchPrimary starts a process and settles which wire it speaks.
func (s *Server) launchPrimary(ctx context.Context) (*pipe, error) {
	return s.launch(ctx, s.settle)
}

// launchLegacy starts a process for the legacy sessions of a server known to speak both wires.
func (s *Server) launchLegacy(ctx context.Context) (*pipe, error) {
	return s.launch(ctx, s.initialize)
}

// launch starts a process and makes it ready; one that does not get ready is killed.
func (s *Server) launch(ctx context.Context, ready func(context.Context, *pipe) error) (*pipe, error) {
	p, err := s.spawn(statelessRouter{})
	if err != nil {
		return nil, err
	}
	if err := ready(ctx, p); err != nil {
		p.proc.kill()
		p.stop(ctx)
		return nil, err
	}
	return p, nil
}

// settle finds the wire of a new process, as basic/versioning has it for stdio: it is asked server/discover, and
// initialised when it answers that like a legacy server. Some legacy servers end, or say nothing more, when they are
// asked anything before initialize; so a process that did either is replaced by one that is initialised at once. A
// legacy verdict that proves wrong is forgotten, and the next process is asked again.
func (s *Server) settle(ctx context.Context, p *pipe) error {
	s.mu.Lock()
	direct := s.skipProbe || s.eras == mcp.EraSet(mcp.Legacy)
	s.mu.Unlock()
	if direct {
		err := s.initialize(ctx, p)
		if err != nil {
			s.learn(0, false)
			return err
		}
		s.learn(mcp.EraSet(mcp.Legacy), false)
		return nil
	}
	return s.probe(ctx, p)
}

// probe asks a new process for its wires and settles on one for this process. One that is known to be stateless may
// take as long as any handshake.
func (s *Server) probe(ctx context.Context, p *pipe) error {
	patience, expected := s.times.Handshake, s.known().Has(mcp.Stateless)
	if !expected {
		patience = min(patience, probeTime)
	}
	asked, cancel := context.WithTimeout(ctx, patience)
	answer, err := p.ask(asked, s.discover())
	cancel()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && expected:
		s.learn(0, false)
		return err
	case err != nil:
		s.log.Info("server did not answer the probe and is started again as a legacy one", "error", err)
		s.learn(0, true)
		return errAgain
	}
	eras, _ := mcp.Verdict(200, answer)
	if s.fixed != 0 {
		eras = s.fixed
	}
	switch {
	case eras.Has(mcp.Stateless):
		p.become(mcp.Stateless, statelessRouter{})
	case eras.Has(mcp.Legacy):
		if err := s.initialize(ctx, p); err != nil {
			if s.fixed == 0 {
				s.learn(0, true) // perhaps it is one that wants initialize first
				return errAgain
			}
			return err
		}
	default:
		return s.fault(upstream.BadAnswer, "it speaks no protocol version known here", nil)
	}
	s.learn(eras, false)
	return nil
}

// initialize is the one handshake of a process on the legacy wire. The process is told of no client capabilities, since
// nothing it asks could be given to the right client. The sessions that share processes move to this one.
func (s *Server) initialize(ctx context.Context, p *pipe) error {
	asked, cancel := context.WithTimeout(ctx, s.times.Handshake)
	defer cancel()
	p.become(mcp.Legacy, s.pool)
	answer, err := p.ask(asked, `{"jsonrpc":"2.0","id":0,"method":"`+mcp.MethodInitialize+`","params":{"protocolVersion":"`+
		mcp.NewestLegacy+`","capabilities":{},"clientInfo":`+s.clientInfo+`}}`)
	if e := (*upstream.Error)(nil); errors.As(err, &e) && (e.Kind == upstream.Lost || e.Kind == upstream.Unreachable) {
		return s.fault(upstream.Unreachable, "its process ended before it answered initialize", err)
	}
	if err != nil {
		return err
	}
	welcome, err := readWelcome(answer)
	if err != nil {
		return s.fault(upstream.BadAnswer, "it refused initialize", err)
	}
	if err := p.notify(&mcp.Message{Raw: []byte(`{"jsonrpc":"2.0","method":"` + mcp.NotificationInitialized + `"}`)}); err != nil {
		return err
	}
	if !s.isolated {
		s.pool.move(p, welcome)
	}
	return nil
}

// discover is a server/discover request of our own.
func (s *Server) discover() string {
	return `{"jsonrpc":"2.0","id":0,"method":"` + mcp.MethodDiscover + `","params":{"_meta":{"` + mcp.MetaKeyVersion + `":"` + mcp.Version20260728 +
		`","` + mcp.MetaKeyClientInfo + `":` + s.clientInfo + `,"` + mcp.MetaKeyClientCapabilities + `":{}}}}`
}
