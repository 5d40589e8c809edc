package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/inboxd/inboxd/internal/devpg"
)

// folder is what the test processes of one run have in common: the servers' files and the locks.
type folder struct{ dir string }

// runFolder returns the folder of this run, and sees to it that someone removes it. A run is what one go
// command starts; a test binary that was started in another way is a run of its own.
var runFolder = sync.OnceValues(func() (folder, error) {
	f, err := openFolder(os.TempDir(), runOwner())
	if err != nil {
		return folder{}, fmt.Errorf("make the folder of the test server: %w", err)
	}
	return f, nil
})

// runOwner returns the process whose end is the run's.
func runOwner() int {
	if parent := os.Getppid(); programName(parent) == "go" {
		return parent
	}
	return os.Getpid()
}

// programName returns the name of a process's program, "" if it can't be told.
func programName(pid int) string {
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
		return strings.TrimSpace(string(text))
	}
	out, err := exec.Command("ps", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return filepath.Base(strings.TrimSpace(string(out)))
}

// folderPrefix begins the name of a user's folders.
func folderPrefix() string { return fmt.Sprintf("inboxd-pgtest-%d-", os.Geteuid()) }

// openFolder makes the folder of the run that owner began, or opens it.
func openFolder(parent string, owner int) (folder, error) {
	f := folder{dir: filepath.Join(parent, folderPrefix()+strconv.Itoa(owner))}
	// Others may pass, not look: as root, the server runs as another user.
	if err := os.Mkdir(f.dir, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return folder{}, err
	}
	info, err := os.Lstat(f.dir)
	if err != nil {
		return folder{}, err
	}
	// Its name can be guessed, and everybody can write to the folder for temporary files.
	if stat, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || ok && int(stat.Uid) != os.Geteuid() {
		return folder{}, fmt.Errorf("%s belongs to someone else", f.dir)
	}
	if err := os.Chmod(f.dir, 0o711); err != nil { // whatever the umask
		return folder{}, err
	}
	return f, f.supervise(owner)
}

// lock waits for the named lock, which lives as long as this process does.
func (f folder) lock(name string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(f.dir, name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, errors.Join(err, file.Close()))
	}
	return func() {
		// Not by closing alone: a child that is just being forked has the file too, until it runs its program.
		_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
		_ = file.Close()
	}, nil
}

// supervisor waits for the end of process $1, ends the servers in folder $2 and removes it. It is a shell's
// work, since no test process lives to the end of the run.
//
// A number in a postmaster.pid may be another program's by now, so its command line has to name the
// folder; a zombie has none. SIGQUIT is PostgreSQL's immediate shutdown. A test may have left its server
// paused, with its children, for whose end it would wait.
const supervisor = `
folder=$2 servers=
ours() { # process
	if [ -d /proc/self ]; then args=$(tr '\0' ' ' <"/proc/$1/cmdline"); else args=$(ps -ww -o args= -p "$1"); fi 2>/dev/null
	case $args in *"$folder/"*) return 0 ;; esac
	return 1
}
resume() { # process
	kill -CONT "$1"
	ps -A -o pid= -o ppid= | while read -r child parent; do
		[ "$parent" = "$1" ] && kill -CONT "$child"
	done
}
while kill -0 "$1" 2>/dev/null; do sleep 0.2 || exit; done
for file in "$folder"/*/data/postmaster.pid; do
	[ -f "$file" ] || continue
	pid=$(head -n 1 "$file")
	if ours "$pid"; then
		kill -QUIT "$pid"
		resume "$pid"
		servers="$servers $pid"
	fi
done 2>/dev/null
for pid in $servers; do
	n=0
	while ours "$pid"; do
		sleep 0.1
		n=$((n + 1))
		[ $n -lt 100 ] || kill -KILL "$pid"
	done
done
rm -rf "$folder"
`

// supervise starts the supervisor unless there is one. It holds a lock as long as it lives, by a file that
// it inherits, so that neither a process number that is used again nor its own death can mislead.
func (f folder) supervise(owner int) error {
	file, err := tryLock(f.dir)
	if err != nil || file == nil {
		return err
	}
	defer file.Close()
	dir, err := filepath.EvalSymlinks(f.dir) // as it stands in the servers' command lines
	if err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", supervisor, "pgtest", strconv.Itoa(owner), dir)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C is not for it
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start what removes %s: %w", f.dir, err)
	}
	// Nobody waits for it: it ends after this process.
	if err := cmd.Process.Release(); err != nil {
		return err
	}
	sweep(filepath.Dir(f.dir))
	return nil
}

// tryLock takes the supervisor's lock of a folder; nil means that a supervisor has it.
func tryLock(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "supervisor.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, file.Close()
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// sweepAge keeps sweep away from a folder whose supervisor is just about to start.
const sweepAge = time.Hour

// sweep removes what runs left behind whose supervisor was killed, when the machine went down for
// instance. Best effort.
func sweep(parent string) {
	old, _ := filepath.Glob(filepath.Join(parent, folderPrefix()+"*"))
	for _, dir := range old {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < sweepAge {
			continue
		}
		file, err := tryLock(dir)
		if err != nil || file == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		locks, _ := filepath.Glob(filepath.Join(dir, "*", "lock"))
		for _, lock := range locks {
			_ = devpg.Remove(ctx, filepath.Dir(lock))
		}
		cancel()
		_ = os.RemoveAll(dir)
		_ = file.Close()
	}
}
