package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// devDir is a folder for `inboxd dev` that the user PostgreSQL runs as can reach, unlike t.TempDir's.
func devDir(t *testing.T) string {
	t.Helper()
	if os.Getenv("INBOXD_DATABASE_URL") != "" {
		t.Setenv("INBOXD_DATABASE_URL", "")
	}
	dir, err := os.MkdirTemp("", "inboxd-dev-") //nolint:usetesting // t.TempDir lies below a folder that is closed to that user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func devProcess(t *testing.T, dir string, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	args = append([]string{"dev", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, args...)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), asInboxd+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, bufio.NewScanner(out)
}

// runDevOnce runs the demonstration and returns what it printed.
func runDevOnce(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd, lines := devProcess(t, dir, append([]string{"--once"}, args...)...)
	var text strings.Builder
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("inboxd dev --once: %v\n%s", err, text.String())
	}
	return text.String()
}

// stopped reports whether no PostgreSQL runs in the folder.
func stopped(t *testing.T, dir string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		found = found || filepath.Base(path) == "postmaster.pid"
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return !found
}

func TestDevOnce(t *testing.T) {
	dir := devDir(t)
	first := runDevOnce(t, dir)
	for _, want := range []string{"200 OK in", "stored as message 1\n", "duplicate of message 1\n", "401 Unauthorized", "webhook-id msg_1", "message 1 is DONE"} {
		if !strings.Contains(first, want) {
			t.Errorf("it doesn't say %q:\n%s", want, first)
		}
	}
	if !stopped(t, dir) {
		t.Error("PostgreSQL still runs")
	}
	// The data stays, until it is told to go.
	if again := runDevOnce(t, dir); strings.Contains(again, "stored as message 1\n") {
		t.Errorf("the first run's message is forgotten:\n%s", again)
	}
	if fresh := runDevOnce(t, dir, "--reset"); !strings.Contains(fresh, "stored as message 1\n") {
		t.Errorf("--reset did not start afresh:\n%s", fresh)
	}
}

// TestDevKilled kills it at each step of its first run [F12]; the next run takes over what was left.
func TestDevKilled(t *testing.T) {
	dir := devDir(t)
	for _, step := range []string{"making a PostgreSQL", "PostgreSQL is ready", "are registered", "a signed event", "final status"} {
		cmd, lines := devProcess(t, dir)
		reached := false
		for !reached && lines.Scan() {
			// Only the first run makes the cluster, if it gets that far.
			reached = strings.Contains(lines.Text(), step)
		}
		if !reached {
			t.Fatalf("it ended before %q: %v", step, cmd.Wait())
		}
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	text := runDevOnce(t, dir)
	if !strings.Contains(text, "is DONE") {
		t.Errorf("the run after the kills: %s", text)
	}
	if !stopped(t, dir) {
		t.Error("PostgreSQL still runs")
	}
}

// TestDevInvites takes the lines that it prints at their word.
func TestDevInvites(t *testing.T) {
	dir := devDir(t)
	cmd, lines := devProcess(t, dir)
	var public, databaseURL, operatorsURL, token string
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case strings.HasPrefix(lines.Text(), "Send a message"):
			for i, field := range fields {
				if field == "--to" {
					public = fields[i+1]
				}
				if field == "--database-url" {
					databaseURL = strings.Trim(fields[i+1], "'")
				}
			}
		case strings.HasPrefix(lines.Text(), "Operators' API"):
			operatorsURL = fields[2]
		case strings.HasPrefix(lines.Text(), "  with the token"):
			token = fields[3]
		}
		if strings.HasPrefix(lines.Text(), "Ctrl-C") {
			break
		}
	}
	var out bytes.Buffer
	key, err := os.ReadFile(filepath.Join(dir, ".inboxd", secretKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	if status := run(t.Context(), []string{"send", demoSource, "--count", "3", "--to", public, "--database-url", databaseURL, "--secret-keys", string(key)}, &out, &out); status != 0 {
		t.Errorf("inboxd send ended with %d: %s", status, out.String())
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, operatorsURL+"/messages", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK || strings.Count(string(answer), `"message_id"`) != 4 {
		t.Errorf("the operators' API says %d %s, want the 4 messages", response.StatusCode, answer)
	}

	// Ctrl-C stops everything.
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	began := time.Now()
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	t.Logf("stopped after %s", time.Since(began))
	if !stopped(t, dir) {
		t.Error("PostgreSQL still runs")
	}
}
