package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// planSettings make the cluster write its log to a file that can be read by SQL.
var planSettings = map[string]string{
	"logging_collector": "on", "log_destination": "csvlog", "log_rotation_size": "0", "log_rotation_age": "0",
}

// explain reads the slowest pages once more through a gateway whose statements auto_explain logs, and prints for each the plan
// of the statement that took longest. The figures are measured before, without it.
func (cmd *benchLists) explain(ctx context.Context, out io.Writer, databaseURL, token string, runs []listsRun) (err error) {
	runs = slices.Clone(runs)
	runs = slices.DeleteFunc(runs, func(run listsRun) bool { return !strings.HasPrefix(run.path, "/api/") })
	slices.SortStableFunc(runs, func(a, b listsRun) int { return cmp.Compare(b.Median, a.Median) })
	runs = runs[:min(cmd.Plans, len(runs))]

	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("connect to the benchmark's database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// They hold for the connections that are made from now on.
	_, err = conn.Exec(ctx, `
DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET session_preload_libraries = auto_explain', current_database());
    EXECUTE format('ALTER DATABASE %I SET auto_explain.log_min_duration = 0', current_database());
    EXECUTE format('ALTER DATABASE %I SET auto_explain.log_analyze = on', current_database());
    EXECUTE format('ALTER DATABASE %I SET auto_explain.log_buffers = on', current_database());
END $$`)
	if err != nil {
		return fmt.Errorf("turn auto_explain on: %w", err)
	}
	marker, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("connect to the benchmark's database: %w", err)
	}
	defer marker.Close(context.WithoutCancel(ctx))
	gateway, address, err := startAdmin(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer func() {
		_, stopErr := gateway.stop()
		err = errors.Join(err, stopErr)
	}()
	if err := awaitReady(ctx, address); err != nil {
		return err
	}
	for n := range len(runs) + 1 {
		// Everything goes into the log in the order in which it ends, so these statements part one request from the next.
		if _, err := marker.Exec(ctx, markerText(n), pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("mark the log: %w", err)
		}
		if n < len(runs) {
			if _, _, err := getTimed(ctx, "http://"+address+runs[n].path, token); err != nil {
				return err
			}
		}
	}
	plans, err := readPlans(ctx, conn, len(runs))
	if err != nil {
		return err
	}
	for n, run := range runs {
		fmt.Fprintf(out, "\nGET %s\nmedian %.1f ms; its slowest statement, explained:\n%s\n", run.Name, run.Median, plans[n])
	}
	return nil
}

func markerText(n int) string { return fmt.Sprintf("SELECT 'inboxd bench lists: request %d'", n) }

// readPlans reads the log until its last marker and returns the longest plan after each marker before it.
func readPlans(ctx context.Context, conn *pgx.Conn, requests int) ([]string, error) {
	for {
		var text string
		if err := conn.QueryRow(ctx, `SELECT pg_read_file(pg_current_logfile('csvlog'))`).Scan(&text); err != nil {
			return nil, fmt.Errorf("read the server's log: %w", err)
		}
		if plans, done := longestPlans(text, requests); done {
			return plans, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond): // its writer is a process of its own
		}
	}
}

// longArray is a constant of many numbers, which says nothing in a plan.
var longArray = regexp.MustCompile(`'\{([^']{20})[^']{20,}\}'`)

// shortPlan leaves out the statement's text and what is in long arrays.
func shortPlan(plan string) string {
	lines := strings.Split(longArray.ReplaceAllString(plan, "'{$1…}'"), "\n")
	first := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "  (cost=") })
	return strings.Join(lines[max(first, 0):], "\n")
}

// longestPlans parses PostgreSQL's log (PostgreSQL manual, "Using CSV-Format Log Output": field 14 is the message).
func longestPlans(text string, requests int) (plans []string, done bool) {
	plans, longest := make([]string, requests), make([]float64, requests)
	lines := csv.NewReader(strings.NewReader(text))
	lines.FieldsPerRecord = -1
	for current := -1; ; {
		fields, err := lines.Read()
		if err != nil {
			return nil, false // the end, or a line that is half written
		}
		if len(fields) < 14 {
			continue
		}
		if _, number, found := strings.Cut(fields[13], "Query Text: SELECT 'inboxd bench lists: request "); found {
			number, _, _ = strings.Cut(number, "'")
			if current, err = strconv.Atoi(number); err == nil && current == requests {
				return plans, true
			}
			continue
		}
		duration, plan, found := strings.Cut(strings.TrimPrefix(fields[13], "duration: "), " ms  plan:\n")
		took, err := strconv.ParseFloat(duration, 64)
		if found && err == nil && current >= 0 && took > longest[current] {
			plans[current], longest[current] = shortPlan(plan), took
		}
	}
}
