package postgres_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/inbox"
)

// operator is who makes the changes of these tests.
var operator = inbox.Actor{Name: "test"}

func (f *fixture) audit(t *testing.T, filter inbox.AuditFilter) []inbox.AuditEntry {
	t.Helper()
	page, err := f.ListAudit(t.Context(), filter, 0, 100)
	if err != nil || page.Next != 0 {
		t.Fatalf("ListAudit = next %d, %v", page.Next, err)
	}
	return page.Items
}

// TestAuditOfDeliveries shows that each thing an operator does to a delivery is an entry, with who and why,
// and that what is refused is none.
func TestAuditOfDeliveries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insert(t, f.message("one"))
	c := f.park(t)
	by := inbox.Actor{Name: "ada", Reason: "the shop was down", Note: "ticket 7"}
	if _, err := f.Retry(t.Context(), by, c.DeliveryID, c.ClaimSeq+1); err == nil {
		t.Fatal("Retry of another claim_seq succeeded")
	}
	if _, err := f.Retry(t.Context(), by, c.DeliveryID, c.ClaimSeq); err != nil {
		t.Fatal(err)
	}
	again := f.claim(t, 1)[0]
	f.record(t, permanent(again))
	if _, err := f.Finish(t.Context(), by, c.DeliveryID, again.ClaimSeq, inbox.Discarded); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Replay(t.Context(), by, c.Message, nil); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range f.audit(t, inbox.AuditFilter{Message: c.Message}) {
		got = append(got, string(e.Action))
		if e.Actor != by || e.Object != c.DeliveryID.String() || e.HandlerID != c.Handler {
			t.Errorf("entry = %+v, want one of %s by %+v", e, c.DeliveryID, by)
		}
	}
	if want := []string{"delivery.replay", "delivery.discard", "delivery.retry"}; !slices.Equal(got, want) {
		t.Errorf("the audit has %v, want %v", got, want)
	}
	entry := f.audit(t, inbox.AuditFilter{Message: c.Message, Action: inbox.DeliveryRetry})[0]
	if !strings.Contains(string(entry.Before), "MANUAL_REQUIRED") || !strings.Contains(string(entry.After), "PENDING") {
		t.Errorf("retry went from %s to %s", entry.Before, entry.After)
	}
	timeline, err := f.Timeline(t.Context(), c.Message)
	if err != nil {
		t.Fatal(err)
	}
	acted := 0
	for _, e := range timeline.Events {
		if e.Kind == inbox.EventActed && e.Actor == by {
			acted++
		}
	}
	if acted != 3 {
		t.Errorf("the timeline has %d acts, want 3", acted)
	}
}

// TestAuditMasksSecrets shows before and after of a change, and that no secret is in the table.
func TestAuditMasksSecrets(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	source := &inbox.Source{Name: "audited", Provider: "stripe", Secrets: []inbox.Secret{"env:PLANTED_ONE"}, Enabled: true}
	if err := f.CreateSource(t.Context(), operator, source); err != nil {
		t.Fatal(err)
	}
	id := source.SecretInfo[0].ID
	_, err := f.ChangeSource(t.Context(), operator, "audited", func(s *inbox.Source) error {
		s.Secrets = append(s.Secrets, "env:PLANTED_TWO")
		s.Enabled = false
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.DeleteSource(t.Context(), operator, "audited"); err != nil {
		t.Fatal(err)
	}
	entries := f.audit(t, inbox.AuditFilter{Object: "audited"})
	if len(entries) != 3 || entries[0].Action != inbox.SourceDelete || entries[1].Action != inbox.SourceChange || entries[2].Action != inbox.SourceCreate {
		t.Fatalf("the audit has %+v, want delete, change, create", entries)
	}
	var before, after struct {
		Enabled bool     `json:"enabled"`
		Secrets []string `json:"secrets"`
	}
	if err := json.Unmarshal(entries[1].Before, &before); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(entries[1].After, &after); err != nil {
		t.Fatal(err)
	}
	if !before.Enabled || after.Enabled || !slices.Equal(before.Secrets, []string{"*** " + id}) || len(after.Secrets) != 2 ||
		after.Secrets[0] != "*** "+id || !strings.HasSuffix(after.Secrets[1], " (new)") {
		t.Errorf("the change went from %+v to %+v", before, after)
	}
	if n := f.value(t, `SELECT count(*) FROM audit AS a WHERE a::text LIKE '%PLANTED%'`); n != 0 {
		t.Error("a secret is in the audit")
	}
}

// TestAuditIsInsertOnly tries what an intruder would.
func TestAuditIsInsertOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if _, err := f.CreateToken(t.Context(), operator, &inbox.OperatorToken{Name: "ops", Role: inbox.RoleAdmin, Scope: inbox.Everything()}); err != nil {
		t.Fatal(err)
	}
	if err := f.RevokeToken(t.Context(), operator, "ops"); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{`UPDATE audit SET actor = 'nobody'`, `DELETE FROM audit`, `TRUNCATE audit`} {
		if _, err := f.pool.Exec(t.Context(), statement); err == nil {
			t.Errorf("%s succeeded", statement)
		}
	}
	if n := len(f.audit(t, inbox.AuditFilter{Object: "ops", Actor: "test"})); n != 2 {
		t.Errorf("the audit has %d entries of the token, want 2", n)
	}
}
