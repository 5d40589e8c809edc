package devpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// prepareDir makes the folder, gives it to the account and closes it to others. It returns its absolute
// path without symbolic links, since it is compared with what running servers say.
func prepareDir(dir string, acc account) (string, error) {
	if err := acc.reach(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make PostgreSQL's folder: %w", err)
	}
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("make PostgreSQL's folder: %w", err)
	}
	// The umask may have closed the parents that were just made.
	if err := acc.reach(abs); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(abs)
	if err != nil {
		return "", fmt.Errorf("make PostgreSQL's folder: %w", err)
	}
	// What follows would lock others out of a folder that has other things in it.
	if _, err := os.Stat(filepath.Join(abs, lockName)); err != nil && len(entries) > 0 {
		return "", fmt.Errorf("%s is neither empty nor a folder of PostgreSQL made by inboxd: name another one", abs)
	}
	if err := errors.Join(acc.own(abs), os.Chmod(abs, 0o700)); err != nil {
		return "", fmt.Errorf("make PostgreSQL's folder: %w", err)
	}
	return abs, nil
}

// lockDir takes the lock that the parent holds while it lives. The kernel releases it even after SIGKILL.
func lockDir(dir string) (*os.File, error) { return lockDirAs(dir, syscall.LOCK_EX) }

// lockDirAs takes the lock alone (LOCK_EX) or with others that only read (LOCK_SH).
func lockDirAs(dir string, how int) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		_ = f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		return nil, fmt.Errorf("PostgreSQL's folder %s is %w by process %s: stop that one first, or name another folder",
			dir, ErrInUse, strings.TrimSpace(string(holder)))
	}
	if how == syscall.LOCK_SH {
		return f, nil
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, errors.Join(err, f.Close()))
	}
	return f, nil
}

// unlockDir gives up the lock. Not by closing alone: a child that is just being forked has the file too,
// until it runs its program.
func unlockDir(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	_ = f.Close()
}

// initialise makes the data on first use. It is made next to its place and renamed when it is complete, so
// that one that was interrupted is never taken for whole.
func (c *Cluster) initialise(ctx context.Context, from string) error {
	data := filepath.Join(c.dir, dataName)
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); err == nil {
		return c.readPassword()
	}
	halves, err := filepath.Glob(filepath.Join(c.dir, dataName+".new-*"))
	if err != nil {
		return fmt.Errorf("look for interrupted data folders: %w", err)
	}
	for _, half := range halves {
		// An initdb whose parent was killed may still write to it; the next start removes the rest then.
		_ = os.RemoveAll(half)
	}
	fresh, err := os.MkdirTemp(c.dir, dataName+".new-")
	if err == nil {
		err = c.account.own(fresh)
	}
	if err != nil {
		return fmt.Errorf("make PostgreSQL's data folder: %w", err)
	}
	defer os.RemoveAll(fresh) // unless it was renamed
	if from != "" {
		err = c.copyData(ctx, from, fresh)
	} else {
		err = c.initdb(ctx, fresh)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, data); err != nil {
		return fmt.Errorf("put PostgreSQL's data in place: %w", err)
	}
	return c.readPassword()
}

func (c *Cluster) initdb(ctx context.Context, fresh string) error {
	c.log(fmt.Sprintf("making a PostgreSQL %d database cluster in %s", c.bin.Major, c.dir))
	pass := filepath.Join(c.dir, passName)
	if err := os.WriteFile(pass, []byte(rand.Text()+"\n"), 0o600); err != nil {
		return fmt.Errorf("write PostgreSQL's password: %w", err)
	}
	if err := c.account.own(pass); err != nil {
		return fmt.Errorf("write PostgreSQL's password: %w", err)
	}
	args := []string{
		"-D", fresh, "-U", superuser, "-E", "UTF8", "--locale=C",
		// The socket's folder is closed to others; on loopback anybody could connect.
		"--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile=" + pass,
	}
	if c.settings["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, c.bin.path("initdb"), args...)
	c.account.run(cmd, c.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w: %s", cmd.Path, err, lastLines(string(out), 12))
	}
	return nil
}

// copyData copies the data and the password of the stopped cluster in from.
func (c *Cluster) copyData(ctx context.Context, from, fresh string) error {
	lock, err := lockDirAs(from, syscall.LOCK_SH)
	if err != nil {
		return fmt.Errorf("copy a database cluster: %w", err)
	}
	defer unlockDir(lock)
	if _, err := os.Stat(filepath.Join(from, dataName, "postmaster.pid")); err == nil {
		return fmt.Errorf("copy the database cluster in %s: it runs or wasn't stopped", from)
	}
	// cp keeps owners and modes, and knows the file system's way to copy without copying.
	for src, dst := range map[string]string{
		filepath.Join(from, dataName) + "/.": fresh,
		filepath.Join(from, passName):        filepath.Join(c.dir, passName),
	} {
		if out, err := exec.CommandContext(ctx, "cp", "-Rp", src, dst).CombinedOutput(); err != nil {
			return fmt.Errorf("copy the database cluster in %s: %w: %s", from, err, lastLines(string(out), 3))
		}
	}
	return nil
}

func (c *Cluster) readPassword() error {
	text, err := os.ReadFile(filepath.Join(c.dir, passName))
	if err != nil {
		return fmt.Errorf("read PostgreSQL's password: %w", err)
	}
	c.password = strings.TrimSpace(string(text))
	return nil
}
