// Package devpg runs a private PostgreSQL for `inboxd dev`, tests and benches. It needs PostgreSQL's
// programs, no installed server: it makes the data folder on first use, starts the server, takes over what
// a killed parent left behind, and stops it. It is not for production.
//
// Only the owner of the data folder (and root) can connect: through a unix socket inside a folder that is
// closed to others or, where its path doesn't fit a socket, through a free loopback port with a random
// password.
//
// PostgreSQL refuses to run as root. Started by root, it runs as user postgres or, if there is none, as
// nobody; the folder is given to that user, and each of its parents must let that user pass.
package devpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Errors to compare with.
var (
	// ErrInUse: another living process runs PostgreSQL in the folder.
	ErrInUse = errors.New("in use")

	// ErrNotFound: no programs of PostgreSQL were found.
	ErrNotFound = errors.New("PostgreSQL was not found")
)

// Options say where and how to run PostgreSQL.
type Options struct {
	// Dir holds the data, the socket, the log and the lock. It belongs to devpg alone: it is made on first
	// use, and a folder with other things in it is refused. Required, except by Ensure with a URL.
	Dir string

	// Settings are configuration parameters of the server; they win over the defaults of this package. They
	// hold for this start, whatever an earlier one was given.
	Settings map[string]string

	// Database is made if it is missing. Empty means "inboxd".
	Database string

	// Binaries are the programs to run; the zero value means those that Find sees, of the version that made
	// the data if there is one.
	Binaries Binaries

	// From is the Dir of a stopped Cluster of the same Binaries. On first use it is copied, which takes less
	// time than making a new one, and brings its databases.
	From string

	// Log is told, in a line each, of what takes time or may surprise. May be nil.
	Log func(string)

	// URL is a database of the user's own. Only Ensure looks at it: it then starts nothing.
	URL string

	// Mirror is the address of the Maven repository from which Ensure may download PostgreSQL; empty means
	// Maven Central.
	Mirror string

	places places
}

// The names inside Dir.
const (
	dataName = "data"
	lockName = "lock"
	logName  = "postgres.log"
	passName = "password"

	// superuser is the role that initdb makes.
	superuser = "postgres"

	// socketPort only names the socket's file: the folder makes it unique.
	socketPort = 5432

	// maxSocketPath is what fits into sockaddr_un everywhere: 104 bytes on BSD and macOS, 108 on Linux, with
	// a zero at the end.
	maxSocketPath = 103
)

// startTimeout bounds a start. It is long, since the server may have to recover first.
const startTimeout = 2 * time.Minute

// stopTimeout is how long a server that was told to drop everything gets before it is killed. PostgreSQL
// itself kills its children after 5 s.
const stopTimeout = 8 * time.Second

// pollPeriod is how often a condition is looked at that nobody reports: PostgreSQL doesn't tell its parent
// when it accepts connections, nor the kernel when a process that isn't our child is gone.
const pollPeriod = 10 * time.Millisecond

// defaults are the settings of every server. fsync and synchronous_commit stand here to say that they are
// not weakened: a bench must be honest.
var defaults = map[string]string{
	"fsync":                   "on",
	"synchronous_commit":      "on",
	"max_connections":         "200",
	"shared_buffers":          "256MB",
	"logging_collector":       "off",
	"log_destination":         "stderr",
	"log_line_prefix":         "%m [%p] ",
	"lc_messages":             "C",
	"timezone":                "UTC",
	"log_timezone":            "UTC",
	"unix_socket_permissions": "0700",

	// Its usual place, /dev/shm, is 64 MB in a container, and a killed server leaves its share there. In the
	// data folder, the next start or the removal of the folder sees to it.
	"dynamic_shared_memory_type": "mmap",
}

// Cluster is one PostgreSQL server with its data folder. Its methods may be called from many goroutines;
// they run one after the other.
type Cluster struct {
	dir      string
	database string
	settings map[string]string
	bin      Binaries
	account  account
	log      func(string)
	password string // only used on loopback
	port     int    // 0: a unix socket in dir

	mu   sync.Mutex
	lock *os.File // held from Start to Stop; nil when stopped
	proc *server  // nil when down
}

// server is a running postmaster, our child.
type server struct {
	pid    int
	exited chan struct{} // closed by the goroutine that waits for the process
	paused bool          // guarded by Cluster.mu
}

// Start runs PostgreSQL in o.Dir and returns once it accepts connections and o.Database exists. ctx bounds
// the start only; the server runs until Stop. It is neither ended by a Ctrl-C in the terminal nor by the
// death of this process: the next Start with the same Dir stops what was left and starts afresh. If
// another living process uses Dir, the error is ErrInUse.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	if o.Dir == "" {
		return nil, errors.New("start PostgreSQL: no folder was given")
	}
	acc, err := serverAccount()
	if err != nil {
		return nil, err
	}
	dir, err := prepareDir(o.Dir, acc)
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, database: o.Database, account: acc, log: o.Log}
	if c.database == "" {
		c.database = "inboxd"
	}
	if c.log == nil {
		c.log = func(string) {}
	}
	c.settings = maps.Clone(defaults)
	maps.Copy(c.settings, o.Settings)

	if c.lock, err = lockDir(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.unlock()
		}
	}()
	if err := stopLeftover(ctx, dir, c.log); err != nil {
		return nil, err
	}
	if c.bin, err = chooseBinaries(ctx, o, dir, acc); err != nil {
		return nil, err
	}
	if err := c.initialise(ctx, o.From); err != nil {
		return nil, err
	}
	if socketFits(dir) {
		err = c.launch(ctx)
	} else {
		err = c.launchOnFreePort(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := c.ensureDatabase(ctx); err != nil {
		return nil, errors.Join(err, c.stop(ctx))
	}
	return c, nil
}

// URL returns the address of a database of this server; "" means Options.Database. It stays the same for as
// long as the Cluster lives.
func (c *Cluster) URL(database string) string {
	if database == "" {
		database = c.database
	}
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database}
	// The port is named even where it is the usual one, so that PGPORT can't change it.
	if c.port == 0 {
		u.RawQuery = url.Values{"host": {c.dir}, "port": {strconv.Itoa(socketPort)}}.Encode()
		return u.String()
	}
	u.User = url.UserPassword(superuser, c.password)
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port))
	u.RawQuery = "sslmode=disable"
	return u.String()
}

// Dir returns the folder, as an absolute path without symbolic links.
func (c *Cluster) Dir() string { return c.dir }

// LogFile returns the path of the server's log.
func (c *Cluster) LogFile() string { return filepath.Join(c.dir, logName) }

// Stop ends all sessions, stops the server and releases the folder. If ctx ends first, the server stops at
// once and recovers at the next start; nothing that was committed is lost. Stopping twice is fine.
func (c *Cluster) Stop(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lock == nil {
		return nil
	}
	err := c.stop(ctx)
	clearLeftovers(c.dir) // of a server that has crashed
	c.unlock()
	return err
}

// Kill ends the server and all its processes with SIGKILL, as a crash would, and returns once they are
// gone. The folder stays ours: Restart recovers it, Stop gives it up.
func (c *Cluster) Kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.running()
	if p == nil {
		return nil
	}
	c.proc = nil
	if err := killTree(p.pid); err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	<-p.exited
	clearLeftovers(c.dir)
	return nil
}

// Restart stops the server if it runs and starts it with the same data, settings and URL. It also brings
// it back after Kill and after Stop.
func (c *Cluster) Restart(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.stop(ctx); err != nil {
		return err
	}
	if c.lock == nil {
		lock, err := lockDir(c.dir)
		if err != nil {
			return err
		}
		c.lock = lock
	}
	return c.launch(ctx)
}

// Pause stops all processes of the server where they are (SIGSTOP). Connections stay open and nothing
// answers, as with a host that hangs.
func (c *Cluster) Pause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.running()
	if p == nil {
		return errors.New("pause PostgreSQL: it doesn't run")
	}
	if _, err := freezeTree(p.pid); err != nil {
		return fmt.Errorf("pause PostgreSQL: %w", err)
	}
	p.paused = true
	return nil
}

// Resume lets a paused server go on.
func (c *Cluster) Resume() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resume()
}

func (c *Cluster) resume() error {
	p := c.running()
	if p == nil || !p.paused {
		return nil
	}
	if err := thawTree(p.pid); err != nil {
		return fmt.Errorf("resume PostgreSQL: %w", err)
	}
	p.paused = false
	return nil
}

// running returns the server if it is up. One that has ended is forgotten: its number may belong to
// another process by now.
func (c *Cluster) running() *server {
	if c.proc != nil {
		select {
		case <-c.proc.exited:
			c.proc = nil
		default:
		}
	}
	return c.proc
}

// stop ends the server if it runs, and keeps the folder. c.mu is held.
func (c *Cluster) stop(ctx context.Context) error {
	p := c.running()
	if p == nil {
		return nil
	}
	if err := c.resume(); err != nil {
		return err
	}
	c.proc = nil
	// SIGINT is PostgreSQL's fast shutdown: it ends sessions rather than wait for them.
	// https://www.postgresql.org/docs/current/server-shutdown.html
	_ = syscall.Kill(p.pid, syscall.SIGINT)
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
	}
	_ = syscall.Kill(p.pid, syscall.SIGQUIT)
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		if err := killTree(p.pid); err != nil {
			return fmt.Errorf("kill PostgreSQL: %w", err)
		}
		<-p.exited
	}
	return fmt.Errorf("stop PostgreSQL: %w: it was ended at once and recovers when it starts again", context.Cause(ctx))
}

// launchOnFreePort starts the server on a loopback port that was free a moment ago, and tries others if
// someone else was faster.
func (c *Cluster) launchOnFreePort(ctx context.Context) error {
	c.log("the path " + c.dir + " doesn't fit a unix socket: PostgreSQL listens on a loopback port, with a password")
	var err error
	for range 5 {
		if c.port, err = freePort(ctx); err != nil {
			return fmt.Errorf("find a free port for PostgreSQL: %w", err)
		}
		if err = c.launch(ctx); err == nil || !strings.Contains(err.Error(), "Address already in use") {
			return err
		}
	}
	return err
}

func freePort(ctx context.Context) (int, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := ln.Addr().(*net.TCPAddr).Port
	return port, ln.Close()
}

// launch starts the server and waits until it accepts connections. Where processes of a killed server are
// still about, it waits for their end: they notice soon that their parent is gone.
func (c *Cluster) launch(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %s", startTimeout))
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.launchOnce(ctx)
		if err == nil || !strings.Contains(err.Error(), "is still in use") {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

func (c *Cluster) launchOnce(ctx context.Context) error {
	if err := removeStaleLocks(c.dir); err != nil {
		return err
	}
	logFile, offset, err := c.openLog()
	if err != nil {
		return err
	}
	defer logFile.Close() // the server has its own copy

	// Not CommandContext: ctx bounds the start, the server lives on.
	cmd := exec.Command(c.bin.path("postgres"), c.arguments()...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	c.account.run(cmd, c.dir)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p := &server{pid: cmd.Process.Pid, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended stands in its log
		close(p.exited)
	}()

	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		select {
		case <-p.exited:
			return fmt.Errorf("PostgreSQL ended while starting: %s", c.logTail(offset))
		case <-ctx.Done():
			err := killTree(p.pid)
			<-p.exited
			return errors.Join(fmt.Errorf("start PostgreSQL: %w: %s", context.Cause(ctx), c.logTail(offset)), err)
		case <-tick.C:
		}
		conn, err := c.connect(ctx)
		if err != nil {
			if refusedForGood(err) {
				c.proc = p
				return errors.Join(fmt.Errorf("connect to the PostgreSQL just started: %w", err), c.stop(ctx))
			}
			continue
		}
		_ = conn.Close(ctx)
		c.proc = p
		return nil
	}
}

// refusedForGood reports whether the server answered and will give the same answer again. While it starts
// up, it says 57P03 or nobody listens.
func refusedForGood(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code != "57P03" && pgErr.Code != "53300"
}

func (c *Cluster) connect(ctx context.Context) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return pgconn.Connect(ctx, c.URL(superuser)) // the role's database: initdb makes one of that name
}

// ensureDatabase makes c.database if it is missing.
func (c *Cluster) ensureDatabase(ctx context.Context) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect to the PostgreSQL just started: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	res := conn.ExecParams(ctx, `SELECT 1 FROM pg_database WHERE datname = $1`, [][]byte{[]byte(c.database)}, nil, nil, nil).Read()
	if res.Err != nil {
		return fmt.Errorf("look for database %s: %w", c.database, res.Err)
	}
	if len(res.Rows) > 0 {
		return nil
	}
	quoted := `"` + strings.ReplaceAll(c.database, `"`, `""`) + `"`
	if err := conn.Exec(ctx, `CREATE DATABASE `+quoted).Close(); err != nil {
		return fmt.Errorf("create database %s: %w", c.database, err)
	}
	return nil
}

// arguments returns those of the server: on the command line settings win over every file in the data
// folder, so those of an earlier start or of ALTER SYSTEM can't shine through.
func (c *Cluster) arguments() []string {
	set := maps.Clone(c.settings)
	if c.port == 0 {
		set["listen_addresses"] = ""
		set["unix_socket_directories"] = c.dir
		set["port"] = strconv.Itoa(socketPort)
	} else {
		set["listen_addresses"] = "127.0.0.1"
		set["unix_socket_directories"] = ""
		set["port"] = strconv.Itoa(c.port)
	}
	args := []string{"-D", filepath.Join(c.dir, dataName)}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		args = append(args, "-c", name+"="+set[name])
	}
	return args
}

// socketPath returns where a server puts its socket; next to it stands a lock file.
func socketPath(dir string) string {
	return filepath.Join(dir, ".s.PGSQL."+strconv.Itoa(socketPort))
}

// socketFits reports whether a socket in dir can be reached. To both the server and its clients, a comma
// separates two hosts.
func socketFits(dir string) bool {
	return len(socketPath(dir)) <= maxSocketPath && !strings.Contains(dir, ",")
}

// maxLog is when the log of earlier starts is put aside.
const maxLog = 16 << 20

// openLog opens the log for appending and returns where this start begins in it.
func (c *Cluster) openLog() (*os.File, int64, error) {
	path := c.LogFile()
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, 0, fmt.Errorf("put the old log aside: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open PostgreSQL's log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("open PostgreSQL's log: %w", errors.Join(err, f.Close()))
	}
	return f, info.Size(), nil
}

// logTail returns the last lines that the server logged since offset, for an error.
func (c *Cluster) logTail(offset int64) string {
	f, err := os.Open(c.LogFile())
	if err != nil {
		return "its log can't be read: " + err.Error()
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, offset, maxLog))
	if err != nil {
		return "its log can't be read: " + err.Error()
	}
	return lastLines(string(text), 12) + "\n(from " + c.LogFile() + ")"
}

// lastLines returns at most n lines of text, each on a line of its own.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return "\n" + strings.Join(lines, "\n")
}

func (c *Cluster) unlock() {
	if c.lock != nil {
		unlockDir(c.lock)
		c.lock = nil
	}
}
