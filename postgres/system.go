package postgres

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/migrations"
)

const (
	// readSystem: a database that is not migrated has none of these tables, and is not served anyway.
	readSystem = `
SELECT now(), current_setting('server_version'),
       coalesce((SELECT max(version_id) FROM goose_db_version WHERE is_applied), 0),
       owner, term, CASE WHEN isfinite(expires_at) THEN expires_at ELSE 'epoch' END
FROM leader`

	// readInstances: handlers' concurrency keeps claims few.
	readInstances = `
SELECT owner, count(*)
FROM (SELECT coalesce(owner, '') AS owner FROM delivery WHERE status = 'PROCESSING' LIMIT @cap) AS d
GROUP BY owner ORDER BY owner`

	// readTables takes every table of the schema that leader is in. The rows are those of the last ANALYZE or VACUUM, or
	// what was counted since, if that is more: nothing counts them.
	readTables = `
SELECT c.relname, c.relkind = 'p', coalesce(p.relname, ''),
       greatest(c.reltuples, pg_stat_get_live_tuples(c.oid), 0)::bigint,
       CASE WHEN c.relkind = 'p' THEN 0 ELSE pg_total_relation_size(c.oid) END,
       coalesce(pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT', false),
       b.bounds[1]::timestamptz, b.bounds[2]::timestamptz
FROM pg_class AS c
LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
LEFT JOIN pg_class AS p ON p.oid = i.inhparent
CROSS JOIN LATERAL (
    SELECT regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''([^'']+)''\) TO \(''([^'']+)''\)') AS bounds
) AS b
WHERE c.relkind IN ('r', 'p') AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'leader'::regclass)
ORDER BY p.relname IS NOT NULL, c.relname`

	// readOldest finds who holds the oldest snapshot of this database, this session apart. No query text: it may hold
	// a payload.
	readOldest = `
SELECT kind, name, age, coalesce(open, '0')
FROM (
    SELECT 'session' AS kind, concat_ws(' ', nullif(application_name, ''), 'pid ' || pid) AS name,
           greatest(age(backend_xmin), age(backend_xid)) AS age, now() - xact_start AS open
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
      AND (datname = current_database() OR datname IS NULL) AND backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT 'prepared transaction', gid, age(transaction), now() - prepared
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', slot_name, greatest(age(xmin), age(catalog_xmin)), NULL
    FROM pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
) AS h
ORDER BY age DESC, open DESC NULLS LAST LIMIT 1`
)

// estimateRows returns how many rows a table has by PostgreSQL's statistics.
func (db *DB) estimateRows(ctx context.Context, table string) (n int64, err error) {
	err = db.pool.QueryRow(ctx, `
SELECT greatest(reltuples, pg_stat_get_live_tuples(oid), 0)::bigint FROM pg_class WHERE oid = @table::text::regclass`,
		pgx.StrictNamedArgs{"table": table}).Scan(&n)
	return n, err
}

// System tells what the instances and the database are at.
func (db *DB) System(ctx context.Context) (*inbox.System, error) {
	s, err := db.system(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the system's state: %w", mapError(err))
	}
	return s, nil
}

func (db *DB) system(ctx context.Context) (*inbox.System, error) {
	s := &inbox.System{}
	if err := db.pool.QueryRow(ctx, readSystem).Scan(&s.At, &s.PostgreSQL, &s.Schema.Applied,
		&s.Leader.Owner, &s.Leader.Term, &s.Leader.ExpiresAt); err != nil {
		return nil, err
	}
	known, err := knownMigration()
	if err != nil {
		return nil, err
	}
	s.Schema.Known = known

	rows, _ := db.pool.Query(ctx, readInstances, planned, pgx.StrictNamedArgs{"cap": statsBacklog})
	if s.Instances, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (i inbox.Instance, err error) {
		err = row.Scan(&i.Owner, &i.Claims.N)
		return i, err
	}); err != nil {
		return nil, err
	}
	if s.Leader.ExpiresAt.After(s.At) {
		i := slices.IndexFunc(s.Instances, func(i inbox.Instance) bool { return i.Owner == s.Leader.Owner })
		if i < 0 {
			i, s.Instances = 0, slices.Insert(s.Instances, 0, inbox.Instance{Owner: s.Leader.Owner})
		}
		s.Instances[i].Leading = true
	}

	if s.Tables, err = db.tables(ctx); err != nil {
		return nil, err
	}
	rows, _ = db.pool.Query(ctx, readOldest, planned)
	holders, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[inbox.Holder])
	if len(holders) > 0 {
		s.Oldest = holders[0]
	}
	return s, err
}

// tables returns the tables with their partitions, those without a range first.
func (db *DB) tables(ctx context.Context) (tables []inbox.Table, err error) {
	rows, err := db.pool.Query(ctx, readTables, planned)
	if err != nil {
		return nil, err
	}
	var (
		p           inbox.Partition
		partitioned bool
		parent      string
		from, to    *time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&p.Name, &partitioned, &parent, &p.Rows.N, &p.Bytes, &p.Default, &from, &to}, func() error {
		p.Rows.Estimated, p.From, p.To = true, orZero(from), orZero(to)
		i := slices.IndexFunc(tables, func(t inbox.Table) bool { return t.Name == parent })
		if parent == "" || i < 0 {
			t := inbox.Table{Name: p.Name, Rows: p.Rows, Bytes: p.Bytes}
			if partitioned {
				t.Rows.N = 0 // the partitions' sum
			}
			tables = append(tables, t)
			return nil
		}
		t := &tables[i]
		t.Rows.N, t.Bytes = t.Rows.N+p.Rows.N, t.Bytes+p.Bytes
		if p.To.After(t.Until) {
			t.Until = p.To
		}
		t.Partitions = append(t.Partitions, p)
		return nil
	})
	for i := range tables {
		slices.SortStableFunc(tables[i].Partitions, func(a, b inbox.Partition) int { return a.From.Compare(b.From) })
	}
	return tables, err
}

// knownMigration returns the number of this build's latest migration.
func knownMigration() (latest int64, err error) {
	names, err := fs.Glob(migrations.FS, "*.sql")
	for _, name := range names {
		number, _, _ := strings.Cut(name, "_")
		if n, err := strconv.ParseInt(number, 10, 64); err == nil {
			latest = max(latest, n)
		}
	}
	return latest, err
}
