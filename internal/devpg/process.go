package devpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one line of the system's process table.
type process struct {
	pid, ppid int
	state     byte // Z: a zombie, T: stopped
}

// processes reads the process table: /proc where there is one, since a slim container has no ps, else ps.
func processes() ([]process, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return psProcesses()
	}
	var list []process
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended since
		}
		// "pid (name) state ppid …", proc(5): the name may hold spaces and brackets, so look from its end.
		head, tail, ok := cutLast(string(text), ")")
		fields := strings.Fields(tail)
		if !ok || len(fields) < 2 {
			continue
		}
		p := process{state: fields[0][0]}
		p.pid, _ = strconv.Atoi(strings.TrimSpace(strings.SplitN(head, "(", 2)[0]))
		p.ppid, _ = strconv.Atoi(fields[1])
		list = append(list, p)
	}
	return list, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func psProcesses() ([]process, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,state=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var list []process
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		p := process{state: fields[2][0]}
		p.pid, _ = strconv.Atoi(fields[0])
		p.ppid, _ = strconv.Atoi(fields[1])
		list = append(list, p)
	}
	return list, nil
}

// alive reports whether the process exists and isn't a zombie: after a parent's death, the first process
// of a container may never collect it.
func alive(pid int) bool {
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return false
	}
	list, err := processes()
	if err != nil {
		return true
	}
	i := slices.IndexFunc(list, func(p process) bool { return p.pid == pid })
	return i >= 0 && list[i].state != 'Z'
}

// childrenOf returns the living children of the process. Each of PostgreSQL's processes has a session of its own, so
// that the process group says nothing.
func childrenOf(pid int) (children []int, err error) {
	list, err := processes()
	for _, p := range list {
		if p.ppid == pid && p.state != 'Z' {
			children = append(children, p.pid)
		}
	}
	return children, err
}

// freezeTree stops the process first, so that it can't make more children, then these, and returns them once
// none runs any more: a signal takes effect a little later.
func freezeTree(pid int) ([]int, error) {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for parentStopped := false; ; <-tick.C {
		list, err := processes()
		if err != nil {
			return nil, err
		}
		var children []int
		parentRuns, childRuns := false, false
		for _, p := range list {
			runs := p.state != 'T' && p.state != 'Z'
			switch {
			case p.pid == pid:
				parentRuns = runs
			case p.ppid == pid && p.state != 'Z':
				children = append(children, p.pid)
				if runs {
					childRuns = true
					_ = syscall.Kill(p.pid, syscall.SIGSTOP) // it may have ended
				}
			}
		}
		// The list is complete if the parent had stopped before it was read.
		if parentStopped && !childRuns {
			return children, nil
		}
		parentStopped = !parentRuns
	}
}

// thawTree lets the process and its children go on.
func thawTree(pid int) error {
	children, err := childrenOf(pid)
	if err != nil {
		return err
	}
	for _, child := range append(children, pid) {
		_ = syscall.Kill(child, syscall.SIGCONT)
	}
	return nil
}

// killTree ends the process and its children with SIGKILL and waits until the children are gone. The
// process itself may be ours to collect.
func killTree(pid int) error {
	children, err := freezeTree(pid)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range append([]int{pid}, children...) {
		_ = syscall.Kill(p, syscall.SIGKILL)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return waitGone(ctx, children...)
}

// waitGone returns once none of the processes is left.
func waitGone(ctx context.Context, pids ...int) error {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for slices.ContainsFunc(pids, alive) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of processes %v: %w", pids, context.Cause(ctx))
		}
	}
	return nil
}

// pidFile is what is needed of postmaster.pid.
// https://www.postgresql.org/docs/current/storage-file-layout.html and miscadmin.h say what its lines are.
type pidFile struct {
	pid   int
	shmid string // of the System V shared memory that guards the data folder
}

func pidPath(dir string) string { return filepath.Join(dir, dataName, "postmaster.pid") }

// readPidFile returns false if there is none or nothing in it. The lock file of a socket begins alike.
func readPidFile(path string) (pidFile, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return pidFile{}, false
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 1 {
		return pidFile{}, false
	}
	f := pidFile{pid: pid}
	if len(lines) > 6 { // line 7: key and id
		if fields := strings.Fields(lines[6]); len(fields) == 2 {
			f.shmid = fields[1]
		}
	}
	return f, true
}

// owner is who a process is to a data folder.
type owner int

const (
	ownerNone     owner = iota // it is gone, or not PostgreSQL: its number was given to another program
	ownerServer                // the server of this data folder
	ownerPostgres              // some PostgreSQL, of which nothing more can be said
)

// whose tells whether the process is the server of dir.
func whose(pid int, dir string) owner {
	if !alive(pid) {
		return ownerNone
	}
	data := filepath.Join(dir, dataName)
	var args []string
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		args = strings.Split(string(text), "\x00")
	} else if out, err := exec.Command("ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output(); err == nil {
		// Its arguments can't be told apart, so a path with spaces is looked for as a whole.
		line := strings.TrimSpace(string(out))
		args = []string{strings.SplitN(line, " ", 2)[0]}
		if strings.Contains(line+" ", " -D "+data+" ") {
			args = append(args, "-D", data)
		}
	}
	if len(args) == 0 {
		return ownerPostgres
	}
	if name := filepath.Base(args[0]); !strings.HasPrefix(name, "postgres") && !strings.HasPrefix(name, "postmaster") {
		return ownerNone
	}
	if i := slices.Index(args, "-D"); i >= 0 && i+1 < len(args) && args[i+1] == data {
		return ownerServer
	}
	// The server works in its data folder, and pg_ctl may have started it with a relative path.
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && cwd == data {
		return ownerServer
	}
	return ownerPostgres
}

// stopLeftover ends the server that a killed parent left running in dir. The lock of dir is held.
func stopLeftover(ctx context.Context, dir string, log func(string)) error {
	f, ok := readPidFile(pidPath(dir))
	if !ok || whose(f.pid, dir) != ownerServer {
		return nil
	}
	log(fmt.Sprintf("stopping the PostgreSQL (process %d) that an earlier run left behind", f.pid))
	// A child that was paused would never see that its parent ends.
	if err := thawTree(f.pid); err != nil {
		return fmt.Errorf("stop the PostgreSQL left behind: %w", err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		_ = syscall.Kill(f.pid, sig)
		wait, cancel := context.WithTimeout(ctx, stopTimeout)
		err := waitGone(wait, f.pid)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("stop the PostgreSQL left behind: %w", context.Cause(ctx))
		}
	}
	if err := killTree(f.pid); err != nil {
		return fmt.Errorf("stop the PostgreSQL left behind: %w", err)
	}
	return waitGone(ctx, f.pid)
}

// removeStaleLocks removes postmaster.pid and the socket's lock if their process is gone. PostgreSQL itself
// refuses to start as long as any process has that number, be it a zombie or another program. That no
// process of the old server uses the data any more, it checks by the shared memory.
func removeStaleLocks(dir string) error {
	for _, path := range []string{pidPath(dir), socketPath(dir) + ".lock"} {
		f, ok := readPidFile(path)
		if !ok || whose(f.pid, dir) != ownerNone {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the stale %s: %w", filepath.Base(path), err)
		}
	}
	return nil
}

// clearLeftovers removes what a killed server left outside its data: its locks, its socket, and its shared
// memory, of which macOS allows only 32. Best effort: the next start copes with either.
func clearLeftovers(dir string) {
	f, ok := readPidFile(pidPath(dir))
	if !ok || whose(f.pid, dir) != ownerNone {
		return
	}
	if f.shmid != "" {
		_ = exec.Command("ipcrm", "-m", f.shmid).Run()
	}
	if removeStaleLocks(dir) == nil {
		_ = os.Remove(socketPath(dir))
	}
}

// Remove stops a server that was left running in dir and removes dir. If another living process uses it,
// the error is ErrInUse; a folder that isn't there is fine.
func Remove(ctx context.Context, dir string) error {
	dir = resolved(dir)
	if _, err := os.Stat(filepath.Join(dir, lockName)); errors.Is(err, os.ErrNotExist) {
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
			return fmt.Errorf("remove %s: it isn't a folder of PostgreSQL made by inboxd", dir)
		}
		return os.RemoveAll(dir)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer unlockDir(lock)
	if err := stopLeftover(ctx, dir, func(string) {}); err != nil {
		return err
	}
	clearLeftovers(dir)
	return os.RemoveAll(dir)
}
