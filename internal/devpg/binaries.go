package devpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// oldest is the first version that the schema runs on: it compresses columns with lz4 and detaches
// partitions concurrently.
const oldest = 14

// Binaries are the programs of one PostgreSQL.
type Binaries struct {
	Dir   string // has initdb and postgres
	Major int    // its version, as in PostgreSQL 15
}

func (b Binaries) path(program string) string { return filepath.Join(b.Dir, program) }

// places are where to look for PostgreSQL, in order.
type places struct {
	lookPath func(string) (string, error) // PATH; also where pg_config is found
	globs    []string                     // of bin folders; within one, the newest version is taken first
}

// or returns p or, if it is zero, the usual places.
func (p places) or() places {
	if p.lookPath != nil {
		return p
	}
	return places{
		lookPath: exec.LookPath,
		globs: []string{
			"/usr/lib/postgresql/*/bin",         // Debian, Ubuntu
			"/usr/pgsql-*/bin",                  // the packages of postgresql.org for RPM systems
			"/opt/homebrew/opt/postgresql*/bin", // Homebrew on Apple silicon
			"/usr/local/opt/postgresql*/bin",    // Homebrew on Intel
			"/Applications/Postgres.app/Contents/Versions/*/bin",
			"/usr/local/pgsql/bin", // built from source
		},
	}
}

// Find returns the first PostgreSQL in PATH, in the folder that pg_config names and in the places where
// Debian, RPM systems, Homebrew and Postgres.app put it. If there is none, the error is ErrNotFound.
func Find(ctx context.Context) (Binaries, error) {
	all, err := places{}.or().find(ctx)
	if err != nil {
		return Binaries{}, err
	}
	return all[0], nil
}

// find returns all of them, the preferred one first.
func (p places) find(ctx context.Context) ([]Binaries, error) {
	var dirs []string
	for _, program := range []string{"postgres", "initdb"} {
		if path, err := p.lookPath(program); err == nil {
			// What is on PATH may be a link to where the programs are together.
			dirs = append(dirs, filepath.Dir(path), filepath.Dir(resolved(path)))
		}
	}
	if pgConfig, err := p.lookPath("pg_config"); err == nil {
		if out, err := exec.CommandContext(ctx, pgConfig, "--bindir").Output(); err == nil {
			dirs = append(dirs, strings.TrimSpace(string(out)))
		}
	}
	for _, glob := range p.globs {
		found, err := filepath.Glob(glob)
		if err != nil {
			return nil, fmt.Errorf("look for PostgreSQL: %w", err)
		}
		slices.SortStableFunc(found, func(a, b string) int { return -cmp.Compare(pathVersion(a), pathVersion(b)) })
		dirs = append(dirs, found...)
	}
	var all []Binaries
	var problems []error
	seen := make(map[string]bool)
	for _, dir := range dirs {
		if real := resolved(dir); seen[real] {
			continue
		} else {
			seen[real] = true
		}
		b, err := inspect(ctx, dir)
		switch {
		case errors.Is(err, os.ErrNotExist): // only the client's programs are here
		case err != nil:
			problems = append(problems, err)
		default:
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		return nil, errors.Join(append([]error{ErrNotFound}, problems...)...)
	}
	return all, nil
}

// number is the first number in the name of a version's folder.
var number = regexp.MustCompile(`\d+`)

// pathVersion returns the version that the path of a bin folder names, 0 if none.
func pathVersion(bin string) int {
	n, _ := strconv.Atoi(number.FindString(filepath.Base(filepath.Dir(bin))))
	return n
}

// version is what `postgres --version` prints: "postgres (PostgreSQL) 15.18 (Debian …)", "… 19devel".
var version = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// inspect looks at the programs in dir.
func inspect(ctx context.Context, dir string) (Binaries, error) {
	b := Binaries{Dir: dir}
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(b.path(program)); err != nil {
			return Binaries{}, fmt.Errorf("look for PostgreSQL in %s: %w", dir, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, b.path("postgres"), "--version").CombinedOutput()
	if err != nil {
		return Binaries{}, fmt.Errorf("run %s --version: %w: %s", b.path("postgres"), err, strings.TrimSpace(string(out)))
	}
	m := version.FindSubmatch(out)
	if m == nil {
		return Binaries{}, fmt.Errorf("run %s --version: unexpected answer %q", b.path("postgres"), out)
	}
	if b.Major, err = strconv.Atoi(string(m[1])); err != nil {
		return Binaries{}, fmt.Errorf("read the version of %s: %w", b.path("postgres"), err)
	}
	if b.Major < oldest {
		return Binaries{}, fmt.Errorf("%s is PostgreSQL %d: inboxd needs %d or newer", dir, b.Major, oldest)
	}
	return b, nil
}

// chooseBinaries returns those of o or the first found that the account can run and that fit the data in
// dir, if there is any: a major version doesn't read the files of another.
func chooseBinaries(ctx context.Context, o Options, dir string, acc account) (Binaries, error) {
	all := []Binaries{o.Binaries}
	if o.Binaries.Dir == "" {
		var err error
		if all, err = o.places.or().find(ctx); err != nil {
			return Binaries{}, err
		}
	}
	want := 0
	if text, err := os.ReadFile(filepath.Join(dir, dataName, "PG_VERSION")); err == nil {
		if want, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return Binaries{}, fmt.Errorf("read the version of the data in %s: %w", dir, err)
		}
	}
	var problems []error
	for _, b := range all {
		if err := acc.reach(b.path("postgres")); err != nil {
			problems = append(problems, err)
			continue
		}
		if want != 0 && b.Major != want {
			problems = append(problems, fmt.Errorf("%s holds data of PostgreSQL %d and %s is PostgreSQL %d: "+
				"install PostgreSQL %d, or remove the folder to start anew", dir, want, b.Dir, b.Major, want))
			continue
		}
		return b, nil
	}
	return Binaries{}, errors.Join(problems...)
}
