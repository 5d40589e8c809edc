package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/devpg"
	"github.com/inboxd/inboxd/postgres"
)

// settings are those of every server here. What they hold is thrown away, so nothing waits for the disk.
// synchronous_commit stays on, though: what was committed must outlive a killed server, if not a killed
// machine.
var settings = map[string]string{
	"fsync":            "off",
	"full_page_writes": "off",
	"max_connections":  "300",
	"shared_buffers":   "64MB",
}

// sharedServer returns the URL of the server that all test processes of this run share, after starting it
// if no other process has.
func sharedServer(ctx context.Context) (string, error) {
	f, err := runFolder()
	if err != nil {
		return "", err
	}
	unlock, err := f.lock("shared")
	if err != nil {
		return "", err
	}
	defer unlock()
	urlFile := filepath.Join(f.dir, "url")
	if text, err := os.ReadFile(urlFile); err == nil && answers(ctx, string(text)) {
		return string(text), nil
	}
	dir := filepath.Join(f.dir, "shared")
	if err := devpg.Remove(ctx, dir); err != nil {
		return "", err
	}
	// It is never stopped from here: it outlives this process and ends with the run.
	c, err := devpg.Start(ctx, devpg.Options{Dir: dir, Settings: settings, Database: "postgres"})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(urlFile, []byte(c.URL("")), 0o600); err != nil {
		return "", fmt.Errorf("record the test server: %w", errors.Join(err, c.Stop(ctx)))
	}
	return c.URL(""), nil
}

// answers reports whether there is a server at url.
func answers(ctx context.Context, url string) bool {
	conn, err := pgx.Connect(ctx, url)
	return err == nil && conn.Close(ctx) == nil
}

// ownCluster starts a server of the caller's own, on a copy of the run's migrated cluster.
func ownCluster(ctx context.Context, own map[string]string) (*devpg.Cluster, error) {
	f, err := runFolder()
	if err != nil {
		return nil, err
	}
	pristine, err := pristineCluster(ctx, f)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(f.dir, "own-")
	if err != nil {
		return nil, fmt.Errorf("make the server's folder: %w", err)
	}
	set := maps.Clone(settings)
	maps.Copy(set, own)
	return devpg.Start(ctx, devpg.Options{Dir: dir, Settings: set, From: pristine})
}

// pristineCluster returns the folder of a stopped cluster whose usual database is migrated. It is made once
// in a run: to copy it takes a fraction of the time.
func pristineCluster(ctx context.Context, f folder) (string, error) {
	unlock, err := f.lock("pristine")
	if err != nil {
		return "", err
	}
	defer unlock()
	dir := filepath.Join(f.dir, "pristine")
	finished := filepath.Join(f.dir, "pristine.finished")
	if _, err := os.Stat(finished); err == nil {
		return dir, nil
	}
	if err := devpg.Remove(ctx, dir); err != nil {
		return "", err
	}
	c, err := devpg.Start(ctx, devpg.Options{Dir: dir, Settings: settings})
	if err != nil {
		return "", err
	}
	err = postgres.Migrate(ctx, c.URL(""))
	if err := errors.Join(err, c.Stop(ctx)); err != nil {
		return "", err
	}
	if err := os.WriteFile(finished, nil, 0o600); err != nil {
		return "", fmt.Errorf("record the migrated cluster: %w", err)
	}
	return dir, nil
}
