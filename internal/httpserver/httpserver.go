// Package httpserver serves HTTP on one listener and stops without breaking a request: it says "not ready",
// asks each connection to close with its next answer, and only then stops listening.
package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Config is what a listener is made of.
type Config struct {
	Listener net.Listener
	Handler  http.Handler
	TLS      *tls.Config // nil serves plain HTTP

	// ReadTimeout bounds the time for a whole request to arrive, body included; default 30 s.
	ReadTimeout time.Duration
	// WriteTimeout bounds a request's handling and answer; 0 is no bound.
	WriteTimeout time.Duration
	// DrainDelay is how long requests are still taken after Serve's ctx is done, so that load
	// balancers see that the instance is not ready and send elsewhere. 0 stops listening at once.
	DrainDelay time.Duration
	// StopTimeout bounds the wait for requests under way after that; default 15 s.
	StopTimeout time.Duration
}

// maxHeaderBytes of one request: providers send a few hundred bytes.
const maxHeaderBytes = 64 << 10

// Serve answers requests until ctx is done and then stops in the order that the package promises. It returns
// an error if it could not serve, or if requests were still under way after StopTimeout.
func Serve(ctx context.Context, cfg Config) error {
	var draining atomic.Bool
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if draining.Load() {
				// The client opens its next connection elsewhere. SetKeepAlivesEnabled(false) would cut idle
				// connections at once, in the face of requests that are just being sent on them.
				w.Header().Set("Connection", "close")
			}
			cfg.Handler.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       orDefault(cfg.ReadTimeout, 30*time.Second),
		WriteTimeout:      cfg.WriteTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		TLSConfig:         cfg.TLS,
	}
	failed := make(chan error, 1)
	go func() {
		if cfg.TLS != nil {
			failed <- server.ServeTLS(cfg.Listener, "", "")
		} else {
			failed <- server.Serve(cfg.Listener)
		}
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", cfg.Listener.Addr(), err)
	case <-ctx.Done():
	}
	draining.Store(true)
	if cfg.DrainDelay > 0 {
		time.Sleep(cfg.DrainDelay)
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), orDefault(cfg.StopTimeout, 15*time.Second))
	defer cancel()
	err := server.Shutdown(stop)
	if err != nil {
		_ = server.Close()
		err = fmt.Errorf("stop %s: requests were still under way: %w", cfg.Listener.Addr(), err)
	}
	if serveErr := <-failed; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

func orDefault(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}
