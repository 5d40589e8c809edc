package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// operateRow is a row of the table in README's chapter Operate: a task and its command.
var operateRow = regexp.MustCompile("(?m)^\\| (.+) \\| `(inboxd .+)` \\|$")

// operateTasks reads the chapter.
func operateTasks(t *testing.T) (commands []string) {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, chapter, _ := strings.Cut(string(text), "\n## Operate\n")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	for _, row := range operateRow.FindAllStringSubmatch(chapter, -1) {
		commands = append(commands, row[2])
	}
	return commands
}

// TestOperate runs each command that README gives for a task, by a shell, as it stands there.
func TestOperate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t)
	registerShop(t, i)
	var mended atomic.Bool
	down := newDownstream(t, func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		if !mended.Load() && r.Header.Get("Inbox-Test") == "" {
			rw.WriteHeader(http.StatusTeapot)
		}
	})
	registerHandler(t, i, "books", down.URL, map[string]any{"permanent_statuses": []int{http.StatusTeapot}})
	parked := func() int { return w.count(t, `SELECT count(*) FROM delivery WHERE status = 'MANUAL_REQUIRED'`) }
	i.post(t, "order 123", "order 124")
	eventually(t, 30*time.Second, "all are parked", func() bool { return parked() == 2 })

	dir := t.TempDir()
	wrapper := "#!/bin/sh\n" + asInboxd + "=1 exec '" + os.Args[0] + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "inboxd"), []byte(wrapper), 0o700); err != nil {
		t.Fatal(err)
	}
	start := func(line string, out *lockedBuffer) *exec.Cmd {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", "exec "+line)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "INBOXD_URL="+i.admin, "INBOXD_TOKEN="+i.token)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	// What the command's output must hold, and what must be true afterwards.
	type check struct {
		holds string
		then  func()
	}
	checks := map[string]check{
		"inboxd stats":             {holds: "parked"},
		"inboxd parked list":       {holds: "answered 418"},
		"inboxd lookup":            {holds: "order 123"},
		"inboxd messages timeline": {holds: "parked"},
		"inboxd handlers pause": {holds: "true", then: func() {
			if n := w.count(t, `SELECT count(*) FROM handler WHERE paused`); n != 1 {
				t.Errorf("%d handlers are paused", n)
			}
			mended.Store(true)
		}},
		"inboxd handlers ping":   {holds: "answered 200"},
		"inboxd handlers resume": {holds: "false"},
		"inboxd parked retry": {holds: "retry", then: func() {
			eventually(t, 30*time.Second, "all that was parked is done", func() bool {
				return w.count(t, `SELECT count(*) FROM outcome WHERE result = 'DONE'`) == 2
			})
		}},
		"inboxd replay": {holds: "books", then: func() {
			eventually(t, 30*time.Second, "the replay is done", func() bool {
				return w.count(t, `SELECT count(*) FROM outcome WHERE result = 'DONE' AND replay_no = 1`) == 1
			})
		}},
		"inboxd audit": {holds: "release 7 is out"},
		"inboxd tail":  {holds: "MANUAL_REQUIRED"},
	}
	commands := operateTasks(t)
	if len(commands) < 10 {
		t.Fatalf("README gives %d commands", len(commands))
	}
	for _, line := range commands {
		var check check
		ran := ""
		for name, c := range checks {
			if strings.HasPrefix(line+" ", name+" ") {
				ran, check = name, c
			}
		}
		if ran == "" {
			t.Errorf("this test doesn't know what `%s` is for", line)
			continue
		}
		var out lockedBuffer
		cmd := start(line, &out)
		if ran == "inboxd tail" { // it doesn't end
			eventually(t, 30*time.Second, "the tail tells", func() bool { return strings.Contains(out.String(), check.holds) })
			_ = cmd.Process.Signal(os.Interrupt)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("`%s`: %v\n%s", line, err, out.String())
		}
		if !strings.Contains(out.String(), check.holds) {
			t.Errorf("`%s` prints nothing of %s:\n%s", line, check.holds, out.String())
		}
		if check.then != nil {
			check.then()
		}
		delete(checks, ran)
	}
	for name := range checks {
		t.Errorf("README gives no task for %s", name)
	}
}
