package devpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// throwaway is for clusters whose data need not survive the machine.
var throwaway = map[string]string{"fsync": "off", "shared_buffers": "16MB"}

// testDir returns a folder that the server's user can reach, which a test's own folder is not for root.
func testDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	return resolved(filepath.Join(dir, "pg"))
}

// pristine is the folder of a stopped cluster: to copy it is faster than initdb. TestMain removes it.
var pristine = sync.OnceValues(func() (string, error) {
	parent, err := os.MkdirTemp("", "devpg-test-")
	if err != nil {
		return "", err
	}
	pristineParent = parent
	if err := os.Chmod(parent, 0o711); err != nil {
		return "", err
	}
	ctx := context.Background()
	c, err := Start(ctx, Options{Dir: filepath.Join(parent, "pg"), Settings: throwaway})
	if err != nil {
		return "", err
	}
	return c.Dir(), c.Stop(ctx)
})

var pristineParent string // set by pristine

func TestMain(m *testing.M) {
	code := m.Run()
	if pristineParent != "" {
		_ = os.RemoveAll(pristineParent)
	}
	os.Exit(code)
}

// startCopy is start with data that need not be made.
func startCopy(t *testing.T, o Options) *Cluster {
	t.Helper()
	from, err := pristine()
	if err != nil {
		t.Fatalf("make a cluster to copy: %v", err)
	}
	o.From = from
	return start(t, o)
}

// start starts a cluster that is gone when the test ends.
func start(t *testing.T, o Options) *Cluster {
	t.Helper()
	if o.Settings == nil {
		o.Settings = throwaway
	}
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("Start = %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Kill(), c.Stop(context.Background())); err != nil {
			t.Errorf("Stop = %v", err)
		}
	})
	return c
}

// query returns the one value that the statement gives.
func query(ctx context.Context, url, statement string) (string, error) {
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	results, err := conn.Exec(ctx, statement).ReadAll()
	if err != nil {
		return "", err
	}
	if last := results[len(results)-1]; len(last.Rows) > 0 {
		return string(last.Rows[0][0]), nil
	}
	return "", nil
}

func mustQuery(t *testing.T, url, statement string) string {
	t.Helper()
	got, err := query(t.Context(), url, statement)
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return got
}

// serverPid returns the process of the server that runs in dir, 0 if none.
func serverPid(dir string) int {
	f, ok := readPidFile(pidPath(dir))
	if !ok || whose(f.pid, dir) != ownerServer {
		return 0
	}
	return f.pid
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	c := start(t, Options{Dir: dir, Settings: map[string]string{"shared_buffers": "16MB", "work_mem": "5MB"}, Database: `in"box`})

	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "200",
		"shared_buffers": "16MB", "work_mem": "5MB", "server_encoding": "UTF8", "lc_collate": "C", "listen_addresses": "",
	} {
		if got := mustQuery(t, c.URL(""), "SHOW "+setting); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
	if got := mustQuery(t, c.URL(""), "SELECT current_database()"); got != `in"box` {
		t.Errorf(`current_database = %q, want in"box`, got)
	}
	if got := mustQuery(t, c.URL("template1"), "SELECT current_database()"); got != "template1" {
		t.Errorf("current_database = %q, want template1", got)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder's mode = %v, %v, want 0700", info.Mode(), err)
	}

	pid := serverPid(dir)
	if pid == 0 {
		t.Fatal("no server is running")
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Fatalf("Stop = %v", err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Errorf("the second Stop = %v", err)
	}
	if alive(pid) {
		t.Error("the server is alive after Stop")
	}
	for _, name := range []string{"data/postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after Stop, %s: %v, want none", name, err)
		}
	}
}

func TestSecondStartKeepsDataAndTakesNewSettings(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	c := startCopy(t, Options{Dir: dir, Settings: map[string]string{"fsync": "off", "work_mem": "5MB"}})
	mustQuery(t, c.URL(""), "CREATE TABLE kept (n int)")
	mustQuery(t, c.URL(""), "ALTER SYSTEM SET max_connections = 77")
	if err := c.Stop(t.Context()); err != nil {
		t.Fatalf("Stop = %v", err)
	}
	c = start(t, Options{Dir: dir, Settings: map[string]string{"fsync": "off", "max_connections": "55"}})
	mustQuery(t, c.URL(""), "SELECT count(*) FROM kept")
	if got := mustQuery(t, c.URL(""), "SHOW work_mem"); got != "4MB" {
		t.Errorf("work_mem = %s, want the server's default, 4MB", got)
	}
	if got := mustQuery(t, c.URL(""), "SHOW max_connections"); got != "55" {
		t.Errorf("max_connections = %s, want 55", got)
	}
}

// parent is a process that runs a cluster and can be killed. It is this test binary again.
type parent struct{ cmd *exec.Cmd }

const (
	parentDir  = "DEVPG_TEST_PARENT_DIR"
	parentFrom = "DEVPG_TEST_PARENT_FROM"
)

// TestParent isn't a test: it is what the parent process runs.
func TestParent(t *testing.T) {
	dir := os.Getenv(parentDir)
	if dir == "" {
		t.Skip("only runs as another test's process")
	}
	if _, err := Start(t.Context(), Options{Dir: dir, Settings: throwaway, From: os.Getenv(parentFrom)}); err != nil {
		t.Fatal(err)
	}
	fmt.Println("READY")
	select {} // until it is killed
}

// startParent starts the process. If the cluster is up, it has copied its data; otherwise it is just about
// to make them.
func startParent(t *testing.T, dir string, up bool) parent {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestParent$")
	cmd.Env = append(os.Environ(), parentDir+"="+dir)
	if up {
		from, err := pristine()
		if err != nil {
			t.Fatalf("make a cluster to copy: %v", err)
		}
		cmd.Env = append(cmd.Env, parentFrom+"="+from)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := parent{cmd: cmd}
	t.Cleanup(func() {
		p.kill()
		if err := Remove(context.Background(), dir); err != nil {
			t.Errorf("Remove = %v", err)
		}
	})
	if up {
		var said []string
		for lines := bufio.NewScanner(out); !slices.Contains(said, "READY"); {
			if !lines.Scan() {
				t.Fatalf("the parent ended: %s", strings.Join(said, "\n"))
			}
			said = append(said, lines.Text())
		}
	}
	return p
}

// kill ends the parent, and it alone, with SIGKILL.
func (p parent) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func TestTakeOver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		then func(t *testing.T, pid int) // what happens to the server after its parent's death
	}{
		{"running", func(*testing.T, int) {}},
		{"paused", func(t *testing.T, pid int) {
			if _, err := freezeTree(pid); err != nil {
				t.Fatal(err)
			}
		}},
		{"killed but for its children", func(t *testing.T, pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }},
		{"all killed", func(t *testing.T, pid int) {
			if err := killTree(pid); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := testDir(t)
			p := startParent(t, dir, true)
			old := &Cluster{dir: dir, database: "inboxd"}
			mustQuery(t, old.URL(""), "CREATE TABLE kept (n int)")
			pid := serverPid(dir)

			p.kill()
			if !alive(pid) {
				t.Fatal("the server died with its parent")
			}
			tt.then(t, pid)

			c := start(t, Options{Dir: dir, Settings: map[string]string{"fsync": "off", "max_connections": "42"}})
			mustQuery(t, c.URL(""), "SELECT count(*) FROM kept")
			if got := mustQuery(t, c.URL(""), "SHOW max_connections"); got != "42" {
				t.Errorf("max_connections = %s, want 42", got)
			}
			if alive(pid) {
				t.Error("the old server is alive")
			}
		})
	}
}

func TestStartWhileInUse(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	p := startParent(t, dir, true)
	pid := serverPid(dir)
	_, err := Start(t.Context(), Options{Dir: dir, Settings: throwaway})
	if !errors.Is(err, ErrInUse) {
		t.Fatalf("Start = %v, want ErrInUse", err)
	}
	if holder := strconv.Itoa(p.cmd.Process.Pid); !strings.Contains(err.Error(), holder) {
		t.Errorf("Start = %v, want it to name process %s", err, holder)
	}
	if err := Remove(t.Context(), dir); !errors.Is(err, ErrInUse) {
		t.Errorf("Remove = %v, want ErrInUse", err)
	}
	if !alive(pid) {
		t.Error("the first server is gone")
	}
}

func TestInterruptedInitdb(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	p := startParent(t, dir, false)
	// Kill it as soon as initdb has made something: nobody reports that, so look.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if made, _ := filepath.Glob(filepath.Join(dir, "data.new-*", "PG_VERSION")); len(made) > 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("initdb never made anything in a folder of its own")
		}
	}
	p.kill()
	if _, err := os.Stat(filepath.Join(dir, dataName)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the data are in place: %v", err)
	}
	c := start(t, Options{Dir: dir})
	mustQuery(t, c.URL(""), "SELECT 1")
}

func TestStalePidFile(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	c := startCopy(t, Options{Dir: dir})
	if err := c.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Its number belongs to another program by now.
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	stale := fmt.Sprintf("%d\n%s\n1700000000\n5432\n%s\n\n  1234567    654321\nready   \n", other.Process.Pid, filepath.Join(dir, dataName), dir)
	if err := os.WriteFile(pidPath(dir), []byte(stale), 0o600); err != nil {
		t.Fatal(err)
	}
	c = start(t, Options{Dir: dir})
	mustQuery(t, c.URL(""), "SELECT 1")
	if !alive(other.Process.Pid) {
		t.Error("another program was ended")
	}
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	c := startCopy(t, Options{Dir: dir})
	url := c.URL("")
	mustQuery(t, url, "CREATE TABLE kept (n int)")
	children, err := childrenOf(serverPid(dir))
	if err != nil || len(children) == 0 {
		t.Fatalf("tree = %v, %v, want the server's children", children, err)
	}
	// What a killed server has there stays there.
	if maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", serverPid(dir))); err == nil && strings.Contains(string(maps), "/dev/shm/") {
		t.Error("the server has files in /dev/shm")
	}
	if err := c.Kill(); err != nil {
		t.Fatalf("Kill = %v", err)
	}
	if i := slices.IndexFunc(children, alive); i >= 0 {
		t.Errorf("process %d is alive after Kill", children[i])
	}
	if _, err := query(t.Context(), url, "SELECT 1"); err == nil {
		t.Error("a killed server answers")
	}
	if _, err := Start(t.Context(), Options{Dir: dir}); !errors.Is(err, ErrInUse) {
		t.Errorf("Start after Kill = %v, want ErrInUse: the cluster is still ours", err)
	}
	for _, down := range []struct {
		name string
		f    func() error
	}{
		{"Kill", func() error { return nil }},
		{"nothing", func() error { return nil }},
		{"Stop", func() error { return c.Stop(t.Context()) }},
		{"a crash", func() error { return killTree(serverPid(dir)) }},
	} {
		if err := down.f(); err != nil {
			t.Fatalf("%s = %v", down.name, err)
		}
		if err := c.Restart(t.Context()); err != nil {
			t.Fatalf("Restart after %s = %v", down.name, err)
		}
		if c.URL("") != url {
			t.Errorf("URL after %s = %s, want %s", down.name, c.URL(""), url)
		}
		mustQuery(t, url, "SELECT count(*) FROM kept")
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	c := startCopy(t, Options{Dir: testDir(t)})
	conn, err := pgconn.Connect(t.Context(), c.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := c.Pause(); err != nil {
		t.Fatalf("Pause = %v", err)
	}
	pid := serverPid(c.Dir())
	list, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	stopped := 0
	for _, p := range list {
		if p.pid != pid && p.ppid != pid || p.state == 'Z' { // a session that ended, which its parent can't collect now
			continue
		}
		if p.state != 'T' {
			t.Errorf("process %d is in state %c, want T", p.pid, p.state)
		}
		stopped++
	}
	if stopped < 3 {
		t.Errorf("%d processes are paused, want the server, its helpers and a session", stopped)
	}
	if err := c.Resume(); err != nil {
		t.Fatalf("Resume = %v", err)
	}
	if err := conn.Exec(t.Context(), "SELECT 1").Close(); err != nil {
		t.Errorf("a session after Resume: %v", err)
	}
	// Stop must get through to a paused server too.
	if err := c.Pause(); err != nil {
		t.Fatalf("Pause = %v", err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Errorf("Stop = %v", err)
	}
}

func TestStopWithoutTime(t *testing.T) {
	t.Parallel()
	c := startCopy(t, Options{Dir: testDir(t)})
	mustQuery(t, c.URL(""), "CREATE TABLE kept (n int)")
	pid := serverPid(c.Dir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Stop(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Stop = %v, want nil or context.Canceled", err)
	}
	if alive(pid) {
		t.Error("the server is alive")
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatalf("Restart = %v", err)
	}
	mustQuery(t, c.URL(""), "SELECT count(*) FROM kept")
}

func TestPathUnfitForSocket(t *testing.T) {
	t.Parallel()
	for _, name := range []string{strings.Repeat("long", 30), "with, comma"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testLoopback(t, filepath.Join(testDir(t), name))
		})
	}
}

func testLoopback(t *testing.T, dir string) {
	c := startCopy(t, Options{Dir: dir})
	u, err := url.Parse(c.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	if u.Hostname() != "127.0.0.1" {
		t.Fatalf("URL = %s, want loopback", c.URL(""))
	}
	mustQuery(t, c.URL(""), "SELECT 1")
	before := c.URL("")
	if err := c.Restart(t.Context()); err != nil {
		t.Fatalf("Restart = %v", err)
	}
	if c.URL("") != before {
		t.Errorf("URL = %s, want %s", c.URL(""), before)
	}
	for _, wrong := range []*url.Userinfo{url.UserPassword(superuser, "wrong"), url.User(superuser)} {
		u.User = wrong
		if _, err := query(t.Context(), u.String(), "SELECT 1"); err == nil {
			t.Errorf("%s was let in", wrong)
		}
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	foreign := testDir(t)
	if err := os.MkdirAll(filepath.Join(foreign, "photos"), 0o755); err != nil {
		t.Fatal(err)
	}
	older := testDir(t)
	if err := os.MkdirAll(filepath.Join(older, dataName), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{lockName: "", "data/PG_VERSION": "9\n"} {
		if err := os.WriteFile(filepath.Join(older, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		o    Options
		want string
	}{
		{"no folder", Options{}, "no folder"},
		{
			"a setting that doesn't exist",
			Options{Dir: testDir(t), Settings: map[string]string{"fsync": "off", "no_such": "1"}},
			`unrecognized configuration parameter "no_such"`,
		},
		{"a folder with other things in it", Options{Dir: foreign}, "neither empty nor"},
		{"data of another version", Options{Dir: older}, "holds data of PostgreSQL 9"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Start(t.Context(), tt.o)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start = %v, want %q", err, tt.want)
			}
		})
	}
	if info, err := os.Stat(foreign); err != nil || info.Mode().Perm() == 0o700 {
		t.Errorf("a foreign folder's mode was changed: %v, %v", info.Mode(), err)
	}
}

func TestStartCancelled(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	// Log is called as initdb begins.
	_, err := Start(ctx, Options{Dir: dir, Settings: throwaway, Log: func(string) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Start = %v, want context.Canceled", err)
	}
	c := start(t, Options{Dir: dir})
	mustQuery(t, c.URL(""), "SELECT 1")
}

func TestFrom(t *testing.T) {
	t.Parallel()
	source := start(t, Options{Dir: testDir(t)})
	mustQuery(t, source.URL(""), "CREATE TABLE kept (n int)")
	if _, err := Start(t.Context(), Options{Dir: testDir(t), From: source.Dir()}); !errors.Is(err, ErrInUse) {
		t.Errorf("Start from a running cluster = %v, want ErrInUse", err)
	}
	if err := source.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := start(t, Options{Dir: testDir(t), From: source.Dir()})
	b := start(t, Options{Dir: testDir(t), From: source.Dir()})
	mustQuery(t, a.URL(""), "DROP TABLE kept")
	mustQuery(t, b.URL(""), "SELECT count(*) FROM kept")
}

func TestRemove(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	startParent(t, dir, true).kill()
	pid := serverPid(dir)
	if pid == 0 {
		t.Fatal("no server was left behind")
	}
	if err := Remove(t.Context(), dir); err != nil {
		t.Fatalf("Remove = %v", err)
	}
	if alive(pid) {
		t.Error("the server is alive")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is there: %v", err)
	}
	if err := Remove(t.Context(), dir); err != nil {
		t.Errorf("Remove of nothing = %v", err)
	}
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "photo"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove(t.Context(), foreign); err == nil {
		t.Error("Remove of a foreign folder = nil")
	}
}

func TestProcessTable(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func() ([]process, error){"this system's way": processes, "ps": psProcesses} {
		if _, err := exec.LookPath("ps"); err != nil && name == "ps" {
			continue
		}
		list, err := read()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		i := slices.IndexFunc(list, func(p process) bool { return p.pid == os.Getpid() })
		if i < 0 || list[i].ppid != os.Getppid() || !strings.ContainsRune("RSD", rune(list[i].state)) {
			t.Errorf("%s: this process is %+v, want it running below %d", name, list, os.Getppid())
		}
	}
}
