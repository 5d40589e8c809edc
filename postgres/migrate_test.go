package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/postgres"
	"github.com/inboxd/inboxd/postgres/pgtest"
)

// emptyDatabase returns the URL of a database without any table, and a connection to it.
func emptyDatabase(t *testing.T) (string, *pgx.Conn) {
	t.Helper()
	db := pgtest.New(t)
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), `DROP SCHEMA public CASCADE; CREATE SCHEMA public`); err != nil {
		t.Fatal(err)
	}
	return db.URL, conn
}

// tables counts the tables in the schema.
func tables(t *testing.T, conn *pgx.Conn) int {
	t.Helper()
	var n int
	err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// applied returns the versions that goose has written down.
func applied(t *testing.T, conn *pgx.Conn) []int64 {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT version_id FROM goose_db_version WHERE version_id > 0 ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	versions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	return versions
}

func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url, conn := emptyDatabase(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if err := postgres.Migrate(t.Context(), url); err != nil {
				t.Errorf("Migrate = %v", err)
			}
		})
	}
	wg.Wait()
	status, err := postgres.MigrationStatus(t.Context(), url)
	if err != nil {
		t.Fatalf("MigrationStatus = %v", err)
	}
	if got := applied(t, conn); len(got) != len(status) {
		t.Errorf("applied %v, want each of %d once", got, len(status))
	}
	for _, m := range status {
		if m.Pending() {
			t.Errorf("%s is pending", m.Name)
		}
	}
}

func TestMigrateInterrupted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		interrupt func(t *testing.T, cancel context.CancelFunc, conn *pgx.Conn, pid int32)
	}{
		{"by its context", func(_ *testing.T, cancel context.CancelFunc, _ *pgx.Conn, _ int32) { cancel() }},
		{"by the end of its session", func(t *testing.T, _ context.CancelFunc, conn *pgx.Conn, pid int32) {
			if _, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, pid); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url, conn := emptyDatabase(t)
			// The first migration's last statement wants this lock to make partitions: there it is held up.
			if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock(hashtextextended('inboxd.make_partition', 0))`); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- postgres.Migrate(ctx, url) }()
			tt.interrupt(t, cancel, conn, waiter(t, conn))
			if err := <-done; err == nil {
				t.Fatal("Migrate = nil, want an error")
			}
			if n := tables(t, conn); n > 1 { // goose's own
				t.Errorf("an interrupted migration left %d tables", n)
			}
			if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_unlock_all()`); err != nil {
				t.Fatal(err)
			}
			if err := postgres.Migrate(t.Context(), url); err != nil {
				t.Errorf("Migrate once more = %v", err)
			}
			if n := tables(t, conn); n < 10 {
				t.Errorf("%d tables, want all", n)
			}
		})
	}
}

// waiter returns the session of this database that waits for an advisory lock. Nobody reports that it
// does, so it is looked for.
func waiter(t *testing.T, conn *pgx.Conn) int32 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var pid int32
		err := conn.QueryRow(ctx, `
SELECT l.pid FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()`).Scan(&pid)
		if err == nil {
			return pid
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			t.Fatal(err)
		}
		<-tick.C
	}
}

func TestMigrationStatus(t *testing.T) {
	t.Parallel()
	url, conn := emptyDatabase(t)
	status, err := postgres.MigrationStatus(t.Context(), url)
	if err != nil {
		t.Fatalf("MigrationStatus = %v", err)
	}
	if len(status) == 0 || status[0].Version != 1 || status[0].Name != "00001_core.sql" || !status[0].Pending() {
		t.Errorf("MigrationStatus of an empty database = %+v, want all pending, 00001_core.sql first", status)
	}
	if n := tables(t, conn); n != 0 {
		t.Errorf("MigrationStatus made %d tables", n)
	}

	if err := postgres.Migrate(t.Context(), url); err != nil {
		t.Fatalf("Migrate = %v", err)
	}
	// A newer release has been here.
	if _, err := conn.Exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (90000, true)`); err != nil {
		t.Fatal(err)
	}
	if err := postgres.Migrate(t.Context(), url); err != nil {
		t.Errorf("Migrate of a newer database = %v", err)
	}
	if status, err = postgres.MigrationStatus(t.Context(), url); err != nil {
		t.Fatalf("MigrationStatus = %v", err)
	}
	last := status[len(status)-1]
	if last.Version != 90000 || last.Name != "" {
		t.Errorf("the last migration = %+v, want 90000 without a name", last)
	}
	for _, m := range status {
		if age := time.Since(m.AppliedAt); age < -time.Minute || age > time.Hour {
			t.Errorf("migration %d was applied at %s", m.Version, m.AppliedAt)
		}
	}
}

func TestMigrateErrors(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres://me:hush@localhost:port/db", "postgres://me:hush@127.0.0.1:1/db"} {
		err := postgres.Migrate(t.Context(), url)
		if err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("Migrate(%s) = %v, want an error without the password", url, err)
		}
		_, err = postgres.MigrationStatus(t.Context(), url)
		if err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("MigrationStatus(%s) = %v, want an error without the password", url, err)
		}
	}
}
