package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestParkingPlacesAreListedAndCounted: wherever something stays until somebody acts, the API lists the place, shows
// where its rows are, and a metric counts them. [F2]
func TestParkingPlacesAreListedAndCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t, func(cfg *gatewayConfig) { cfg.Settings.Roles = []string{"ingest", "admin"} })
	registerShop(t, i)
	client := &http.Client{}
	post := func(id string) {
		t.Helper()
		if status, _, err := postShop(t.Context(), client, i.public, id, []byte("{}")); err != nil || status != http.StatusOK {
			t.Fatalf("post %s = %d, %v", id, status, err)
		}
	}
	post("lost")
	registerHandler(t, i, "paused", "http://127.0.0.1:9", map[string]any{"paused": true})
	registerHandler(t, i, "parked", "http://127.0.0.1:9", map[string]any{"paused": true})
	registerHandler(t, i, "mute", "http://127.0.0.1:9", nil)
	post("m1")
	post("m2")
	w.exec(t, `UPDATE delivery SET status = 'MANUAL_REQUIRED' WHERE handler_id = (SELECT id FROM handler WHERE name = 'parked')`)
	w.exec(t, `UPDATE handler SET secrets = '{env:NOT_SET_ANYWHERE}' WHERE name = 'mute'`)
	w.exec(t, `INSERT INTO source (name, provider, enabled) VALUES ('closed', 'none', false)`)
	w.exec(t, `INSERT INTO source (name, provider, secrets) VALUES ('keyless', 'stripe', '{env:NOT_SET_ANYWHERE}')`)

	var stats struct {
		Parking []struct {
			Place, Handler, Source string
			Count                  struct{ Count int }
			Find                   []string
		}
	}
	i.call(t, http.MethodGet, "/stats?minutes=1", nil, &stats)
	var got []string
	for _, p := range stats.Parking {
		got = append(got, fmt.Sprintf(`inboxd_parking{handler=%q,place=%q,source=%q} %d`, p.Handler, p.Place, p.Source, p.Count.Count))
		found := 0
		for _, path := range p.Find {
			var list struct{ Items []any }
			i.call(t, http.MethodGet, strings.TrimPrefix(path, "/api/v1"), nil, &list)
			found += len(list.Items)
		}
		if found != p.Count.Count {
			t.Errorf("%s: %d are counted, and %q list %d", p.Place, p.Count.Count, p.Find, found)
		}
	}
	want := []string{
		`inboxd_parking{handler="mute",place="handler_secret",source=""} 2`,
		`inboxd_parking{handler="parked",place="parked",source=""} 2`,
		`inboxd_parking{handler="paused",place="paused",source=""} 2`,
		`inboxd_parking{handler="",place="source_disabled",source="closed"} 0`,
		`inboxd_parking{handler="",place="source_secret",source="keyless"} 0`,
		`inboxd_parking{handler="",place="unrouted",source=""} 1`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the API lists\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	// What a disabled source refuses leaves no row; it is counted by itself.
	eventually(t, time.Second, "the source is refused", func() bool {
		response, err := http.Post(i.public+"/in/closed", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return strings.Contains(scrape(t, i), `inboxd_requests_rejected_total{reason="source_disabled",source="closed"}`)
	})

	leader := w.start(t)
	eventually(t, 10*time.Second, "the leader has counted", func() bool {
		text := scrape(t, leader)
		return !slices.ContainsFunc(want, func(line string) bool { return !strings.Contains(text, line+"\n") })
	})
	var system struct {
		Version, Instance string
		Leader            struct {
			Leading bool
			Owner   string
		}
	}
	leader.call(t, http.MethodGet, "/system", nil, &system)
	if !system.Leader.Leading || system.Leader.Owner != system.Instance || system.Version != buildVersion() {
		t.Errorf("the system is %+v", system)
	}
}

func scrape(t *testing.T, i *instance) string {
	t.Helper()
	response, err := http.Get(i.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
