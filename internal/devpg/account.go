package devpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that PostgreSQL's programs run as.
type account struct {
	name     string
	uid, gid uint32
	drop     bool // we are root and become that user; otherwise it is us
}

// serverAccount returns our own account or, for root, postgres or else nobody.
func serverAccount() (account, error) {
	if uid := os.Geteuid(); uid != 0 {
		return account{name: "the current user", uid: uint32(uid), gid: uint32(os.Getegid())}, nil
	}
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return account{}, fmt.Errorf("look up user %s: %w", name, err)
		}
		return account{name: "user " + name, uid: uint32(uid), gid: uint32(gid), drop: true}, nil
	}
	return account{name: "user 65534", uid: 65534, gid: 65534, drop: true}, nil
}

// run makes cmd run as the account, in dir, in a session of its own: a Ctrl-C in the terminal goes to the
// foreground group, and the server has to outlive what its parent does on it.
func (a account) run(cmd *exec.Cmd, dir string) {
	cmd.Dir = dir
	// Not our environment: PGDATA, PGPORT, PGOPTIONS or a locale would change what runs.
	cmd.Env = []string{"PATH=" + filepath.Dir(cmd.Path) + ":/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a.drop {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
}

// own gives path to the account.
func (a account) own(path string) error {
	if !a.drop {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// UnreachableError says that the user PostgreSQL runs as can't reach a path.
type UnreachableError struct {
	Path   string      // what it can't reach
	Parent string      // the folder that it can't pass
	Mode   os.FileMode // of Parent
	User   string
}

// Error names the folder that is closed and what to do.
func (e *UnreachableError) Error() string {
	return fmt.Sprintf("PostgreSQL doesn't run as root but as %s, who can't reach %s: %s has mode %04o; "+
		"use a folder elsewhere, or run inboxd as an ordinary user, or use a PostgreSQL of your own",
		e.User, e.Path, e.Parent, e.Mode.Perm())
}

// reach returns an *UnreachableError if a parent of path, as far as they exist, doesn't let the account
// pass.
func (a account) reach(path string) error {
	if !a.drop {
		return nil
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	for _, p := range []string{abs, resolved(abs)} {
		for parent := filepath.Dir(p); ; parent = filepath.Dir(parent) {
			info, err := os.Stat(parent)
			if err == nil && !a.passes(info) {
				return &UnreachableError{Path: path, Parent: parent, Mode: info.Mode(), User: a.name}
			}
			if parent == filepath.Dir(parent) {
				break
			}
		}
	}
	return nil
}

// passes reports whether the account may search the folder. Access control lists are not looked at.
func (a account) passes(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return true
	}
	switch {
	case stat.Uid == a.uid:
		return info.Mode()&0o100 != 0
	case stat.Gid == a.gid:
		return info.Mode()&0o010 != 0
	}
	return info.Mode()&0o001 != 0
}

// resolved follows the symbolic links in path as far as it exists.
func resolved(path string) string {
	if r, err := filepath.EvalSymlinks(path); err == nil {
		return r
	}
	dir, base := filepath.Split(path)
	if dir = filepath.Clean(dir); dir == path {
		return path
	}
	return filepath.Join(resolved(dir), base)
}
