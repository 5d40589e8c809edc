package postgres_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/inboxd/inboxd/inbox"
	"github.com/inboxd/inboxd/postgres"
	"github.com/inboxd/inboxd/postgres/pgtest"
)

func newBench(b *testing.B) (*fixture, func(n int) []inbox.Message) {
	b.Helper()
	url := pgtest.New(b).URL
	db, err := postgres.Open(b.Context(), url, 4)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(db.Close)
	pool, err := pgxpool.New(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	f := &fixture{DB: db, pool: pool}
	f.source = f.value(b, `INSERT INTO source (name, provider) VALUES ('shop', 'none') RETURNING id`)
	f.handler = f.addHandler(b, "books")
	f.readVersion(b)
	body := []byte(strings.Repeat("x", 1500))
	sum := sha256.Sum256(body)
	made := 0
	return f, func(n int) []inbox.Message {
		batch := make([]inbox.Message, n)
		for i := range batch {
			made++
			batch[i] = inbox.Message{
				SourceID: f.source, MessageID: fmt.Sprintf("evt_%d_%d", time.Now().UnixNano(), made), MessageType: "payment_intent.succeeded",
				ContentType: "application/json", Headers: []byte("User-Agent: bench\r\n"), Body: body, BodyHash: [16]byte(sum[:16]),
				Routes: []inbox.Route{{HandlerID: f.handler, MaxRetryCount: 5}},
			}
		}
		return batch
	}
}

// BenchmarkInsert stores messages of 1.5 KB, each with one delivery, in batches.
func BenchmarkInsert(b *testing.B) {
	for _, size := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint("batch=", size), func(b *testing.B) {
			f, batch := newBench(b)
			b.ReportAllocs()
			stored := 0
			for b.Loop() {
				if _, err := f.Insert(b.Context(), f.version, batch(size)); err != nil {
					b.Fatal(err)
				}
				stored += size
			}
			b.ReportMetric(float64(stored)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// BenchmarkDeliver claims, reads and records deliveries of a backlog, without a handler.
func BenchmarkDeliver(b *testing.B) {
	const page = 64
	f, batch := newBench(b)
	b.ReportAllocs()
	delivered := 0
	for b.Loop() {
		b.StopTimer()
		if _, err := f.Insert(b.Context(), f.version, batch(page)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		claims, _, err := f.Claim(b.Context(), owner, newToken(), []inbox.Want{{HandlerID: f.handler, Free: page, Lease: lease, Bound: time.Now().Add(-10 * time.Second)}})
		if err != nil || len(claims) != page {
			b.Fatal(len(claims), err)
		}
		if _, err := f.Messages(b.Context(), claims); err != nil {
			b.Fatal(err)
		}
		results := make([]inbox.Result, len(claims))
		for i, c := range claims {
			results[i] = done(c)
		}
		if _, err := f.Record(b.Context(), owner, results); err != nil {
			b.Fatal(err)
		}
		delivered += page
	}
	b.ReportMetric(float64(delivered)/b.Elapsed().Seconds(), "deliveries/s")
}
