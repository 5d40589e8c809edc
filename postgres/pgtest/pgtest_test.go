package pgtest

import (
	"context"
	"fmt"
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

func TestNewTiming(t *testing.T) {
	for i := range 5 {
		start := time.Now()
		db := New(t)
		t.Logf("New %d: %s", i, time.Since(start))
		connect(t, db.URL)
	}
	start := time.Now()
	c := Cluster(t, nil)
	t.Logf("Cluster: %s", time.Since(start))
	start = time.Now()
	c = Cluster(t, nil)
	t.Logf("Cluster: %s", time.Since(start))
	connect(t, c.URL(""))
	var wg sync.WaitGroup
	_ = fmt.Sprint
	wg.Wait()
}
