package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("Connect = %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// value returns the one value that the query gives.
func value[T any](t *testing.T, url, query string, args ...any) T {
	t.Helper()
	var got T
	if err := connect(t, url).QueryRow(t.Context(), query, args...).Scan(&got); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return got
}

const countSources = `SELECT count(*) FROM source`

const insertSource = `INSERT INTO source (name, provider) VALUES ('shop', 'stripe')`

func TestNewIsolatesTests(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	dbs := make([]*DB, 8)
	for i := range dbs {
		wg.Go(func() {
			dbs[i] = New(t)
			if _, err := connect(t, dbs[i].URL).Exec(t.Context(), insertSource); err != nil {
				t.Errorf("insert into database %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for i, db := range append(dbs, New(t)) {
		want := int64(1)
		if i == len(dbs) {
			want = 0 // what tests write never reaches the template
		}
		if got := value[int64](t, db.URL, countSources); got != want {
			t.Errorf("database %d has %d sources, want %d", i, got, want)
		}
		if got := value[string](t, db.URL, `SELECT current_database()`); got != db.Name {
			t.Errorf("current_database = %s, want %s", got, db.Name)
		}
	}
}

func TestNewDropsItsDatabase(t *testing.T) {
	t.Parallel()
	var db *DB
	var open *pgx.Conn
	t.Run("user", func(t *testing.T) {
		db = New(t)
		var err error
		if open, err = pgx.Connect(t.Context(), db.URL); err != nil {
			t.Fatal(err)
		}
	})
	if err := open.Ping(t.Context()); err == nil {
		t.Error("a connection outlives its database")
	}
	s, err := server()
	if err != nil {
		t.Fatal(err)
	}
	if value[bool](t, s.url, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, db.Name) {
		t.Errorf("database %s is there after its test", db.Name)
	}
}

// TestTemplateInterrupted: one that was not finished is made again, and old ones go.
func TestTemplateInterrupted(t *testing.T) {
	t.Parallel()
	c := Cluster(t, nil)
	stale := templatePrefix + "20200101_0123456789ab"
	for _, statement := range []string{
		`CREATE DATABASE ` + quote(template()+"_new"),
		`CREATE DATABASE ` + quote(stale),
		`CREATE DATABASE ` + quote(templatePrefix+day(-1)+"0123456789ab"),
	} {
		if _, err := connect(t, c.URL("")).Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	a := &admin{url: c.URL("")}
	var wg sync.WaitGroup
	for range 3 { // the test processes of a run
		wg.Go(func() {
			err := a.run(t.Context(), func(conn *pgx.Conn) error { return makeTemplate(t.Context(), conn, a.url) })
			if err != nil {
				t.Errorf("makeTemplate = %v", err)
			}
		})
	}
	wg.Wait()
	db, err := a.create(t.Context())
	if err != nil {
		t.Fatalf("create = %v", err)
	}
	if got := value[int64](t, db.URL, countSources); got != 0 {
		t.Errorf("%d sources, want 0", got)
	}
	names := value[string](t, c.URL(""), `SELECT string_agg(datname, ' ') FROM pg_database WHERE starts_with(datname, $1)`, templatePrefix)
	if strings.Contains(names, stale) || !strings.Contains(names, day(-1)) || strings.Contains(names, "_new") {
		t.Errorf("the templates are %s, want today's and yesterday's", names)
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	var dir string
	t.Run("user", func(t *testing.T) {
		a, b := Cluster(t, map[string]string{"commit_delay": "100"}), Cluster(t, nil)
		dir = a.Dir()
		if _, err := connect(t, a.URL("")).Exec(t.Context(), insertSource); err != nil {
			t.Fatal(err)
		}
		if got := value[int64](t, b.URL(""), countSources); got != 0 {
			t.Errorf("the other cluster has %d sources, want 0", got)
		}
		for setting, want := range map[string]string{"fsync": "off", "commit_delay": "100", "synchronous_commit": "on"} {
			if got := value[string](t, a.URL(""), "SHOW "+setting); got != want {
				t.Errorf("%s = %s, want %s", setting, got, want)
			}
		}
		if err := a.Kill(); err != nil {
			t.Fatalf("Kill = %v", err)
		}
		if err := a.Restart(t.Context()); err != nil {
			t.Fatalf("Restart = %v", err)
		}
		if got := value[int64](t, a.URL(""), countSources); got != 1 {
			t.Errorf("after a crash, %d sources, want 1", got)
		}
		if err := b.Pause(); err != nil { // cleaned up all the same
			t.Fatalf("Pause = %v", err)
		}
	})
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the cluster's folder is there after its test: %v", err)
	}
}

const (
	runParent = "PGTEST_TEST_RUN_PARENT"
	runName   = "PGTEST_TEST_RUN_OWNER"
)

// TestRunProcess isn't a test: it is one of a run's test processes, in TestRunEnds.
func TestRunProcess(t *testing.T) {
	parent := os.Getenv(runParent)
	if parent == "" {
		t.Skip("only runs as another test's process")
	}
	owner, err := strconv.Atoi(os.Getenv(runName))
	if err != nil {
		t.Fatal(err)
	}
	f, err := openFolder(parent, owner)
	if err != nil {
		t.Fatal(err)
	}
	runFolder = func() (folder, error) { return f, nil }
	url, err := sharedServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A server of the test's own, which it has no time to clean up.
	c, err := ownCluster(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	fmt.Println("URL", url, value[string](t, url, `SELECT system_identifier::text FROM pg_control_system()`))
	os.Exit(0)
}

// TestRunEnds: the processes of a run share a server, which ends with the run, as does all that they left.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	if err := os.Chmod(filepath.Dir(parent), 0o711); err != nil { // for the server's user, if we are root
		t.Fatal(err)
	}
	owner := exec.Command("sleep", "600") // stands for the go command
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = owner.Process.Kill()
		_ = owner.Wait()
	})
	t.Cleanup(end)

	said := make([]string, 3)
	var wg sync.WaitGroup
	for i := range said {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRunProcess$")
			cmd.Env = append(os.Environ(), runParent+"="+parent, runName+"="+strconv.Itoa(owner.Process.Pid))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("process %d: %v: %s", i, err, out)
			}
			for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
				if rest, ok := strings.CutPrefix(lines.Text(), "URL "); ok {
					said[i] = rest
				}
			}
		})
	}
	wg.Wait()
	if said[0] == "" || said[0] != said[1] || said[1] != said[2] {
		t.Fatalf("the processes used %q, want one server", said)
	}
	url, _, _ := strings.Cut(said[0], " ")
	if !answers(t.Context(), url) {
		t.Error("the server ended before the run")
	}
	folders := func() []string {
		list, _ := filepath.Glob(filepath.Join(parent, "*"))
		return list
	}
	if got := folders(); len(got) != 1 {
		t.Errorf("the run has folders %q, want one", got)
	}
	var pids []int
	files, _ := filepath.Glob(filepath.Join(parent, "*", "*", "data", "postmaster.pid"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.SplitN(string(text), "\n", 2)[0])
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if len(pids) != 4 {
		t.Errorf("%d servers run, want the shared one and three that were left", len(pids))
	}

	end()
	// The supervisor isn't a child of ours, so look whether it has done its work.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for len(folders()) > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("left after the run: %q", folders())
		}
	}
	for _, pid := range pids {
		// Not its number: in a container, a zombie may keep that for a while.
		if line := commandLine(pid); strings.Contains(line, parent) {
			t.Errorf("server %d is alive after the run: %s", pid, line)
		}
	}
}

// commandLine returns that of a process, nothing that can be mistaken for one if it is gone or a zombie.
func commandLine(pid int) string {
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		return string(text)
	}
	out, _ := exec.Command("ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return string(out)
}

func TestSweep(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	make := func(name string, age time.Duration) string {
		dir := filepath.Join(parent, folderPrefix()+name)
		if err := os.MkdirAll(filepath.Join(dir, "shared"), 0o755); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(dir, then, then); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	left, young, busy := make("1", 2*time.Hour), make("2", 0), make("3", 0)
	lock, err := tryLock(busy)
	if err != nil || lock == nil {
		t.Fatalf("tryLock = %v, %v", lock, err)
	}
	defer lock.Close()
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(busy, old, old); err != nil {
		t.Fatal(err)
	}
	sweep(parent)
	for dir, want := range map[string]bool{left: false, young: true, busy: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v, want it to be there: %v", filepath.Base(dir), err, want)
		}
	}
}

func TestFolderOfSomeoneElse(t *testing.T) {
	t.Parallel()
	parent, elsewhere := t.TempDir(), t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(parent, folderPrefix()+"1")); err != nil {
		t.Fatal(err)
	}
	if _, err := openFolder(parent, 1); err == nil {
		t.Error("openFolder of a symbolic link = nil")
	}
}

// BenchmarkNew measures what a test pays for its database.
func BenchmarkNew(b *testing.B) {
	s, err := server()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		db, err := s.create(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := s.drop(b.Context(), db); err != nil {
			b.Fatal(err)
		}
	}
}
