package devpg

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakePrograms makes a bin folder whose postgres says that it is the version.
func fakePrograms(t *testing.T, bin, version string) {
	t.Helper()
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"initdb", "postgres"} {
		script := fmt.Sprintf("#!/bin/sh\necho '%s (PostgreSQL) %s'\n", name, version)
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// lookIn stands for a PATH of one folder.
func lookIn(dir string) func(string) (string, error) {
	return func(program string) (string, error) {
		path := filepath.Join(dir, program)
		_, err := os.Stat(path)
		return path, err
	}
}

func TestFindOrder(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for dir, version := range map[string]string{
		"lib/9": "9.6.24", "lib/15": "15.18 (Debian 15.18-0+deb12u1)", "lib/17": "17.5", "lib/16": "16.9", "lib/20": "20devel",
		"brew/postgresql@14": "14.2", "path": "15.1", "config": "18.0",
	} {
		fakePrograms(t, filepath.Join(root, dir, "bin"), version)
	}
	if err := os.MkdirAll(filepath.Join(root, "lib/99/bin"), 0o755); err != nil { // the client's programs alone
		t.Fatal(err)
	}
	pgConfig := "#!/bin/sh\necho " + filepath.Join(root, "config/bin") + "\n"
	if err := os.WriteFile(filepath.Join(root, "path/bin/pg_config"), []byte(pgConfig), 0o755); err != nil {
		t.Fatal(err)
	}
	p := places{
		lookPath: lookIn(filepath.Join(root, "path/bin")),
		globs:    []string{filepath.Join(root, "lib/*/bin"), filepath.Join(root, "brew/*/bin")},
	}
	all, err := p.find(t.Context())
	if err != nil {
		t.Fatalf("find = %v", err)
	}
	var got []string
	for _, b := range all {
		rel, _ := filepath.Rel(root, b.Dir)
		got = append(got, fmt.Sprintf("%s=%d", filepath.Dir(rel), b.Major))
	}
	want := "path=15 config=18 lib/20=20 lib/17=17 lib/16=16 lib/15=15 brew/postgresql@14=14"
	if strings.Join(got, " ") != want {
		t.Errorf("find = %s, want %s", strings.Join(got, " "), want)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	b, err := Find(t.Context())
	if err != nil {
		t.Fatalf("Find = %v", err)
	}
	if b.Major < oldest {
		t.Errorf("Find = %+v, want a version of at least %d", b, oldest)
	}
}

// nowhere has no PostgreSQL.
func nowhere(t *testing.T) places {
	return places{lookPath: lookIn(t.TempDir())}
}

func TestEnsureURL(t *testing.T) {
	t.Parallel()
	url, stop, err := Ensure(t.Context(), Options{URL: "postgres://mine/db"})
	if err != nil || url != "postgres://mine/db" {
		t.Fatalf("Ensure = %q, %v, want the URL that was given", url, err)
	}
	if err := stop(t.Context()); err != nil {
		t.Errorf("stop = %v", err)
	}
}

func TestEnsureLocal(t *testing.T) {
	t.Parallel()
	dir := testDir(t)
	url, stop, err := Ensure(t.Context(), Options{Dir: dir, Settings: throwaway})
	if err != nil {
		t.Fatalf("Ensure = %v", err)
	}
	if got := mustQuery(t, url, "SELECT current_database()"); got != "inboxd" {
		t.Errorf("current_database = %s, want inboxd", got)
	}
	pid := serverPid(dir)
	if err := stop(t.Context()); err != nil {
		t.Errorf("stop = %v", err)
	}
	if alive(pid) {
		t.Error("the server is alive")
	}
}

func TestEnsureNothing(t *testing.T) {
	t.Parallel()
	mirror := httptest.NewServer(http.NotFoundHandler())
	defer mirror.Close()
	_, _, err := Ensure(t.Context(), Options{Dir: testDir(t), Mirror: mirror.URL, places: nowhere(t)})
	if !errors.Is(err, ErrNotFound) {
		t.Fatalf("Ensure = %v, want ErrNotFound", err)
	}
	for _, way := range []string{"INBOXD_DATABASE_URL", "initdb and postgres are in PATH", "download it", mirror.URL} {
		if !strings.Contains(err.Error(), way) {
			t.Errorf("Ensure = %v, want it to name %q", err, way)
		}
	}
}

// archive returns what the mirror serves: a jar that holds a txz that holds programs which call the real
// ones.
func archive(t *testing.T, real Binaries) []byte {
	t.Helper()
	var tarball bytes.Buffer
	w := tar.NewWriter(&tarball)
	for _, name := range []string{"pg_ctl", "initdb", "postgres"} {
		script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", real.path(name))
		err := w.WriteHeader(&tar.Header{Name: "bin/" + name, Mode: 0o755, Size: int64(len(script)), Typeflag: tar.TypeReg})
		if err == nil {
			_, err = w.Write([]byte(script))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	xz := exec.Command("xz", "-c")
	xz.Stdin = &tarball
	compressed, err := xz.Output()
	if err != nil {
		t.Skipf("this test needs xz to make an archive: %v", err)
	}
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	f, err := z.Create("postgres.txz")
	if err == nil {
		_, err = f.Write(compressed)
	}
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return jar.Bytes()
}

func TestEnsureDownload(t *testing.T) {
	t.Parallel()
	real, err := Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	jar := archive(t, real)
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, ".jar") {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(jar)
	}))
	defer mirror.Close()
	dir := testDir(t)
	o := Options{Dir: dir, Settings: throwaway, Mirror: mirror.URL, places: nowhere(t)}
	url, stop, err := Ensure(t.Context(), o)
	if err != nil {
		t.Fatalf("Ensure = %v", err)
	}
	mustQuery(t, url, "SELECT 1")
	if err := stop(t.Context()); err != nil {
		t.Fatalf("stop = %v", err)
	}
	// The second time, nothing is downloaded.
	mirror.Close()
	_, stop, err = Ensure(t.Context(), o)
	if err != nil {
		t.Fatalf("the second Ensure = %v", err)
	}
	if err := stop(t.Context()); err != nil {
		t.Errorf("stop = %v", err)
	}
}

func TestEmbeddedCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		<-release
		w.WriteHeader(http.StatusNotFound)
	}))
	defer mirror.Close()
	defer close(release)
	if _, err := embedded(ctx, t.TempDir(), mirror.URL, func(string) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("embedded = %v, want context.Canceled", err)
	}
}

func TestClosedParent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root starts the server as another user")
	}
	home := testDir(t)
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(home, "project", ".inboxd", "postgres")
	_, err := Start(t.Context(), Options{Dir: dir})
	closed, ok := errors.AsType[*UnreachableError](err)
	if !ok || closed.Parent != home {
		t.Fatalf("Start = %v, want that %s is closed", err, home)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder was made all the same: %v", err)
	}

	old := rootData
	rootData = testDir(t)
	defer func() { rootData = old }()
	var said []string
	url, stop, err := Ensure(t.Context(), Options{Dir: dir, Settings: throwaway, Log: func(line string) { said = append(said, line) }})
	if err != nil {
		t.Fatalf("Ensure = %v", err)
	}
	defer func() { _ = stop(context.Background()) }()
	mustQuery(t, url, "SELECT 1")
	if text := strings.Join(said, "\n"); !strings.Contains(text, home) || !strings.Contains(text, rootData) {
		t.Errorf("Log was told %q, want it to name %s and %s", text, home, rootData)
	}
}
