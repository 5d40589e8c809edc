package postgres_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// park claims the one delivery that is ready and parks it.
func (f *fixture) park(t *testing.T) inbox.Claim {
	t.Helper()
	claims := f.claim(t, 1)
	if len(claims) != 1 {
		t.Fatalf("claimed %d deliveries, want 1", len(claims))
	}
	f.record(t, permanent(claims[0]))
	return claims[0]
}

// ledger returns the outcomes of a delivery, as "result replay_no claim_seq attempts last_error".
func (f *fixture) ledger(t *testing.T, id inbox.DeliveryID) []string {
	t.Helper()
	d, err := f.Delivery(t.Context(), id)
	if err != nil {
		t.Fatalf("Delivery(%s) = %v", id, err)
	}
	var list []string
	for _, o := range d.Outcomes {
		list = append(list, fmt.Sprintf("%s %d %d %d %s", o.Result, o.ReplayNo, o.ClaimSeq, o.Attempts, o.LastError))
	}
	return list
}

// TestOperatorTransitions walks the transitions of the table of states that operators make, with their guards.
func TestOperatorTransitions(t *testing.T) {
	for _, test := range []struct {
		name    string
		do      func(t *testing.T, f *fixture, c inbox.Claim) error
		wantErr error
		want    row
		ledger  []string // of c.ClaimSeq 1
	}{
		{"14 retry", func(t *testing.T, f *fixture, c inbox.Claim) error {
			d, err := f.Retry(t.Context(), operator, c.DeliveryID, c.ClaimSeq)
			if d.Status != inbox.Pending || d.LastError == "" {
				t.Errorf("Retry = %+v, want PENDING with the last error", d)
			}
			return err
		}, nil, row{status: "PENDING", due: "now", attempts: 3, class: "status"}, nil},
		{"14 retry gives all retries again", func(t *testing.T, f *fixture, c inbox.Claim) error {
			if _, err := f.Retry(t.Context(), operator, c.DeliveryID, c.ClaimSeq); err != nil {
				return err
			}
			f.record(t, failed(f.claim(t, 1)[0]))
			return nil
		}, nil, row{status: "FAILED", retryCount: 1, due: "1m0s", attempts: 4, class: "status"}, nil},
		{"14 retry by an old claim_seq", func(t *testing.T, f *fixture, c inbox.Claim) error {
			_, err := f.Retry(t.Context(), operator, c.DeliveryID, c.ClaimSeq-1)
			return err
		}, inbox.ErrConflict, row{status: "MANUAL_REQUIRED", retryCount: 2, due: "never", attempts: 3, class: "status"}, nil},
		{"14 retry of what is retried", func(t *testing.T, f *fixture, c inbox.Claim) error {
			if _, err := f.Retry(t.Context(), operator, c.DeliveryID, c.ClaimSeq); err != nil {
				return err
			}
			_, err := f.Retry(t.Context(), operator, c.DeliveryID, c.ClaimSeq)
			return err
		}, inbox.ErrConflict, row{status: "PENDING", due: "now", attempts: 3, class: "status"}, nil},
		{"14 retry at a deleted handler", func(t *testing.T, f *fixture, c inbox.Claim) error {
			if err := f.DeleteHandler(t.Context(), operator, "books"); err != nil {
				return err
			}
			_, err := f.Retry(t.Context(), operator, c.DeliveryID, c.ClaimSeq)
			return err
		}, inbox.ErrConflict, row{status: "MANUAL_REQUIRED", retryCount: 2, due: "never", attempts: 3, class: "status"}, nil},
		{"15 discard", func(t *testing.T, f *fixture, c inbox.Claim) error {
			d, err := f.Finish(t.Context(), inbox.Actor{Name: "test", Reason: "a test order"}, c.DeliveryID, c.ClaimSeq, inbox.Discarded)
			if d.Status != inbox.Discarded || d.ClaimSeq != c.ClaimSeq {
				t.Errorf("Finish = %+v, want DISCARDED with its claim_seq", d)
			}
			return err
		}, nil, row{status: "DISCARDED", retryCount: 2, due: "never", attempts: 3, class: "status"}, []string{"DISCARDED 0 1 3 a test order"}},
		{"15 done", func(t *testing.T, f *fixture, c inbox.Claim) error {
			_, err := f.Finish(t.Context(), operator, c.DeliveryID, c.ClaimSeq, inbox.Done)
			return err
		}, nil, row{status: "DONE", retryCount: 2, due: "never", attempts: 3, class: "status"}, []string{"DONE 0 1 3 answered 500"}},
		{"15 done by another claim_seq", func(t *testing.T, f *fixture, c inbox.Claim) error {
			_, err := f.Finish(t.Context(), operator, c.DeliveryID, c.ClaimSeq+1, inbox.Done)
			return err
		}, inbox.ErrConflict, row{status: "MANUAL_REQUIRED", retryCount: 2, due: "never", attempts: 3, class: "status"}, nil},
		{"15 discard of what is under way again", func(t *testing.T, f *fixture, c inbox.Claim) error {
			if _, err := f.Retry(t.Context(), operator, c.DeliveryID, c.ClaimSeq); err != nil {
				return err
			}
			again := f.claim(t, 1)[0]
			_, err := f.Finish(t.Context(), operator, c.DeliveryID, again.ClaimSeq, inbox.Discarded)
			return err
		}, inbox.ErrConflict, row{status: "PROCESSING", due: "now", attempts: 3, class: "status"}, nil},
		{"17 replay of DISCARDED", func(t *testing.T, f *fixture, c inbox.Claim) error {
			if _, err := f.Finish(t.Context(), operator, c.DeliveryID, c.ClaimSeq, inbox.Discarded); err != nil {
				return err
			}
			f.exec(t, `UPDATE handler SET max_retry_count = 7`)
			replayed, err := f.Replay(t.Context(), operator, c.Message, nil)
			if len(replayed) != 1 || replayed[0].DeliveryID != c.DeliveryID || replayed[0].ClaimSeq != c.ClaimSeq ||
				replayed[0].MaxRetryCount != 7 {
				t.Errorf("Replay = %+v, want the delivery with its claim_seq and the handler's retries of now", replayed)
			}
			return err
		}, nil, row{status: "PENDING", due: "now", replayNo: 1, attempts: 3, class: "status"}, []string{"DISCARDED 0 1 3 answered 500"}},
		{"17 replay of DONE, twice", func(t *testing.T, f *fixture, c inbox.Claim) error {
			if _, err := f.Finish(t.Context(), operator, c.DeliveryID, c.ClaimSeq, inbox.Done); err != nil {
				return err
			}
			for range 2 {
				if _, err := f.Replay(t.Context(), operator, c.Message, []int64{f.handler}); err != nil {
					return err
				}
				again := f.claim(t, 1)[0]
				if again.ClaimSeq <= c.ClaimSeq {
					t.Errorf("claim_seq went from %d to %d", c.ClaimSeq, again.ClaimSeq)
				}
				f.record(t, done(again))
			}
			return nil
		}, nil, row{status: "DONE", due: "never", replayNo: 2, attempts: 3, class: "status"}, []string{"DONE 0 1 3 answered 500", "DONE 1 2 1 ", "DONE 2 3 1 "}},
		{"17 only planned", func(t *testing.T, f *fixture, c inbox.Claim) error {
			if _, err := f.Finish(t.Context(), operator, c.DeliveryID, c.ClaimSeq, inbox.Done); err != nil {
				return err
			}
			acts := f.value(t, `SELECT count(*) FROM audit`)
			planned, err := f.PlanReplay(t.Context(), operator, c.Message, nil)
			if len(planned) != 1 || planned[0].DeliveryID != c.DeliveryID || planned[0].Status != inbox.Pending || planned[0].ReplayNo != 1 {
				t.Errorf("PlanReplay = %+v, want the delivery as it would be", planned)
			}
			if n := f.value(t, `SELECT count(*) FROM audit`); n != acts {
				t.Errorf("the audit has %d entries, and %d before", n, acts)
			}
			return err
		}, nil, row{status: "DONE", retryCount: 2, due: "never", attempts: 3, class: "status"}, []string{"DONE 0 1 3 answered 500"}},
		{"17 replay beside a live row", func(t *testing.T, f *fixture, c inbox.Claim) error {
			_, err := f.Replay(t.Context(), operator, c.Message, []int64{f.handler})
			return err
		}, inbox.ErrConflict, row{status: "MANUAL_REQUIRED", retryCount: 2, due: "never", attempts: 3, class: "status"}, nil},
		{"17 replay to a handler that never had it", func(t *testing.T, f *fixture, c inbox.Claim) error {
			_, err := f.Replay(t.Context(), operator, c.Message, []int64{f.addHandler(t, "other")})
			return err
		}, inbox.ErrConflict, row{status: "MANUAL_REQUIRED", retryCount: 2, due: "never", attempts: 3, class: "status"}, nil},
		{"17 nothing to replay", func(t *testing.T, f *fixture, c inbox.Claim) error {
			_, err := f.Replay(t.Context(), operator, c.Message, nil)
			return err
		}, inbox.ErrConflict, row{status: "MANUAL_REQUIRED", retryCount: 2, due: "never", attempts: 3, class: "status"}, nil},
		{"17 replay to a deleted handler", func(t *testing.T, f *fixture, c inbox.Claim) error {
			if _, err := f.Finish(t.Context(), operator, c.DeliveryID, c.ClaimSeq, inbox.Done); err != nil {
				return err
			}
			if err := f.DeleteHandler(t.Context(), operator, "books"); err != nil {
				return err
			}
			_, err := f.Replay(t.Context(), operator, c.Message, nil)
			return err
		}, inbox.ErrConflict, row{status: "DONE", retryCount: 2, due: "never", attempts: 3, class: "status"}, []string{"DONE 0 1 3 answered 500"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.insert(t, f.message("one"))
			c := f.claim(t, 1)[0]
			f.setRetries(t, c, 2)
			f.record(t, failed(c)) // no retry is left: parked
			if err := test.do(t, f, c); !errors.Is(err, test.wantErr) {
				t.Errorf("err = %v, want %v", err, test.wantErr)
			}
			got := f.read(t, c.DeliveryID)
			if got != test.want {
				t.Errorf("the delivery is %+v, want %+v", got, test.want)
			}
			if got := f.ledger(t, c.DeliveryID); !slices.Equal(got, test.ledger) {
				t.Errorf("outcomes = %q, want %q", got, test.ledger)
			}
			f.checkClean(t)
		})
	}
}

func TestReplayUnrouted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	none := f.message("one")
	none.Routes = nil
	id := f.insert(t, none)[0].ID
	f.exec(t, `UPDATE handler SET message_types = '{refunded}'`)
	if _, err := f.Replay(t.Context(), operator, id, nil); !errors.Is(err, inbox.ErrConflict) {
		t.Errorf("Replay with no subscriber = %v, want ErrConflict", err)
	}
	if _, err := f.Replay(t.Context(), operator, id+1, nil); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("Replay of no message = %v, want ErrNotFound", err)
	}
	subscriber := f.addHandler(t, "subscriber")
	replayed, err := f.Replay(t.Context(), operator, id, nil)
	if err != nil || len(replayed) != 1 || replayed[0].DeliveryID != (inbox.DeliveryID{Message: id, Handler: subscriber}) {
		t.Fatalf("Replay = %+v, %v, want one delivery to %d", replayed, err, subscriber)
	}
	want := row{status: "PENDING", due: "now", replayNo: 1}
	if got := f.read(t, replayed[0].DeliveryID); got != want {
		t.Errorf("the delivery is %+v, want %+v", got, want)
	}
	// It has reached no handler when it came, so others can still be named.
	if replayed, err = f.Replay(t.Context(), operator, id, []int64{f.handler}); err != nil || len(replayed) != 1 {
		t.Errorf("Replay to a named handler = %+v, %v", replayed, err)
	}
	m, err := f.Message(t.Context(), id)
	if err != nil || m.Status != inbox.Pending || len(m.Deliveries) != 2 {
		t.Errorf("the message is %+v, %v, want PENDING with two deliveries", m, err)
	}
	f.checkClean(t)
}

func TestReplayDuplicate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	none := f.message("one")
	none.Routes = nil
	id := f.insert(t, none)[0].ID
	f.exec(t, `UPDATE outcome SET result = 'DUPLICATE', dup_of = 77`)
	m, err := f.Message(t.Context(), id)
	if err != nil || m.Status != inbox.Duplicate || m.DupOf != 77 {
		t.Errorf("the message is %+v, %v, want DUPLICATE of 77", m, err)
	}
	if replayed, err := f.Replay(t.Context(), operator, id, nil); err != nil || len(replayed) != 1 {
		t.Errorf("Replay = %+v, %v, want one delivery", replayed, err)
	}
	f.checkClean(t)
}

// TestOperatorsAtOnce: of those who act on one delivery at once, exactly one wins.
func TestOperatorsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insert(t, f.message("one"))
	c := f.park(t)
	race := func(what string, act func(i int) error) {
		t.Helper()
		var (
			group sync.WaitGroup
			errs  = make([]error, 8)
		)
		for i := range errs {
			group.Go(func() { errs[i] = act(i) })
		}
		group.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if !errors.Is(err, inbox.ErrConflict) {
				t.Errorf("%s = %v, want ErrConflict", what, err)
			}
		}
		if won != 1 {
			t.Errorf("%s: %d won, want 1", what, won)
		}
	}
	race("act on a parked delivery", func(i int) error {
		if i%2 == 0 {
			_, err := f.Finish(t.Context(), operator, c.DeliveryID, c.ClaimSeq, inbox.Discarded)
			return err
		}
		_, err := f.Retry(t.Context(), operator, c.DeliveryID, c.ClaimSeq)
		return err
	})
	if f.read(t, c.DeliveryID).status == "PENDING" {
		f.record(t, done(f.claim(t, 1)[0]))
	}
	race("replay", func(int) error {
		_, err := f.Replay(t.Context(), operator, c.Message, []int64{f.handler})
		return err
	})
	f.checkClean(t)
}

// TestReplayWhileOneEnds: a replay that waited for another whose delivery has ended meanwhile continues
// that one's number.
func TestReplayWhileOneEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.insert(t, f.message("one"))
	c := f.claim(t, 1)[0]
	f.record(t, done(c))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				if _, err := f.Replay(t.Context(), operator, c.Message, []int64{f.handler}); err != nil && !errors.Is(err, inbox.ErrConflict) {
					t.Errorf("Replay = %v", err)
				}
				f.exec(t, `
WITH ended AS (DELETE FROM delivery RETURNING *)
INSERT INTO outcome (id, handler_id, source_id, received_at, finished_at, claim_seq, replay_no, result)
SELECT id, handler_id, source_id, received_at, now(), claim_seq, replay_no, 'DONE' FROM ended`)
			}
		})
	}
	group.Wait()
	f.checkClean(t)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token, err := f.CreateToken(t.Context(), operator, &inbox.OperatorToken{Name: "ops", Role: inbox.RoleAdmin, Scope: inbox.Everything()})
	if err != nil || !strings.HasPrefix(token, "inboxd_") || len(token) != len("inboxd_")+43 {
		t.Fatalf("CreateToken = %q, %v", token, err)
	}
	if _, err := f.CreateToken(t.Context(), operator, &inbox.OperatorToken{Name: "ops", Role: inbox.RoleAdmin, Scope: inbox.Everything()}); !errors.Is(err, inbox.ErrNameTaken) {
		t.Errorf("CreateToken again = %v, want ErrNameTaken", err)
	}
	if n := f.value(t, `SELECT count(*) FROM token WHERE token::text LIKE '%inboxd_%'`); n != 0 {
		t.Error("the token's text is in the table")
	}
	hash := sha256.Sum256([]byte(token))
	if got, err := f.TokenByHash(t.Context(), hash); err != nil || got.Name != "ops" {
		t.Errorf("TokenByHash = %+v, %v", got, err)
	}
	if _, err := f.TokenByHash(t.Context(), sha256.Sum256([]byte(token+"x"))); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("TokenByHash of another = %v, want ErrNotFound", err)
	}
	if err := f.RevokeToken(t.Context(), operator, "ops"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.TokenByHash(t.Context(), hash); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("TokenByHash of a revoked one = %v, want ErrNotFound", err)
	}
	expiring := &inbox.OperatorToken{
		Name: "expiring", Role: inbox.RoleOperate, Scope: inbox.Scope{Sources: []string{"shop-*", "x"}, Handlers: []string{"books"}},
		ExpiresAt: time.Now().Add(time.Hour).Truncate(time.Second),
	}
	if token, err = f.CreateToken(t.Context(), operator, expiring); err != nil {
		t.Fatal(err)
	}
	hash = sha256.Sum256([]byte(token))
	if got, err := f.TokenByHash(t.Context(), hash); err != nil || got.Role != inbox.RoleOperate || !got.ExpiresAt.Equal(expiring.ExpiresAt) ||
		!reflect.DeepEqual(got.Scope, expiring.Scope) || got.ID != expiring.ID {
		t.Errorf("TokenByHash = %+v, %v, want %+v", got, err, expiring)
	}
	f.exec(t, `UPDATE token SET expires_at = now() WHERE name = 'expiring'`)
	if _, err := f.TokenByHash(t.Context(), hash); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("TokenByHash of an expired one = %v, want ErrNotFound", err)
	}
	for _, wrong := range []inbox.OperatorToken{{Role: "root", Scope: inbox.Everything()}, {Role: inbox.RoleRead}, {Scope: inbox.Everything()}} {
		wrong.Name = "wrong"
		if _, err := f.CreateToken(t.Context(), operator, &wrong); !errors.Is(err, inbox.ErrRefused) {
			t.Errorf("CreateToken(%+v) = %v, want ErrRefused", wrong, err)
		}
	}
	if err := f.RevokeToken(t.Context(), operator, "nobody"); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("RevokeToken of nobody = %v, want ErrNotFound", err)
	}
	if list, err := f.Tokens(t.Context()); err != nil || len(list) != 2 || list[0].RevokedAt.IsZero() || list[1].Valid(time.Now()) {
		t.Errorf("Tokens = %+v, %v, want one that is revoked and one that has expired", list, err)
	}
}

// history gives every status there is, on several days and two handlers.
func (f *fixture) history(t *testing.T) (other int64) {
	t.Helper()
	other = f.addHandler(t, "other")
	f.readVersion(t)
	for i := range 40 {
		m := f.message(fmt.Sprintf("m%02d", i))
		m.MessageType = []string{"paid", "refunded"}[i%2]
		if i%5 == 0 {
			m.BizKey = "order 1"
		}
		if i%4 == 0 {
			m.OrderingKey = "cart 1"
		}
		switch {
		case i%10 == 9:
			m.Routes = nil
		case i%3 == 0:
			m.Routes = append(m.Routes, inbox.Route{HandlerID: other, MaxRetryCount: 2})
		}
		f.insert(t, m)
	}
	claims := f.claim(t, 30)
	for i, c := range claims {
		switch i % 6 {
		case 0, 1:
			f.record(t, done(c))
		case 2:
			f.record(t, permanent(c))
		case 3:
			r := failed(c)
			r.Class, r.ResponseStatus = inbox.ClassTimeout, 0
			f.record(t, r)
		case 4:
			f.record(t, permanent(c))
			if _, err := f.Finish(t.Context(), operator, c.DeliveryID, c.ClaimSeq, inbox.Discarded); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range claims[:12] {
		if f.read(t, c.DeliveryID).status == "DONE" {
			if _, err := f.Replay(t.Context(), operator, c.Message, []int64{f.handler}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return other
}

// TestListsAgreeWithTheView: both lists, whatever the page's length, hold what the view delivery_status and
// the rule of a message's one status say.
func TestListsAgreeWithTheView(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := f.history(t)
	f.checkClean(t)
	middle := time.Time{}
	if err := f.pool.QueryRow(t.Context(), `SELECT received_at FROM inbox_message ORDER BY id OFFSET 20 LIMIT 1`).Scan(&middle); err != nil {
		t.Fatal(err)
	}

	type filter struct {
		name         string
		filter       inbox.Filter
		where        string // of delivery_status s, inbox_message m
		messageWhere string // of a message with its status; "" takes where of any delivery
	}
	filters := []filter{
		{"all", inbox.Filter{}, "true", "true"},
		{"source", inbox.Filter{SourceID: f.source}, "m.source_id = " + fmt.Sprint(f.source), "true"},
		{"other source", inbox.Filter{SourceID: 99}, "false", "false"},
		{"handler", inbox.Filter{HandlerID: other}, "s.handler_id = " + fmt.Sprint(other), ""},
		{"type", inbox.Filter{MessageType: "paid"}, "m.message_type = 'paid'", "m.message_type = 'paid'"},
		{"biz key", inbox.Filter{BizKey: "order 1"}, "m.biz_key = 'order 1'", "m.biz_key = 'order 1'"},
		{"ordering key", inbox.Filter{OrderingKey: "cart 1"}, "m.ordering_key = 'cart 1'", "m.ordering_key = 'cart 1'"},
		{"message id", inbox.Filter{MessageID: "m03"}, "m.message_id = 'm03'", "m.message_id = 'm03'"},
		{"message id of one source", inbox.Filter{MessageID: "m03", SourceID: f.source}, "m.message_id = 'm03'", "m.message_id = 'm03'"},
		{"no such message id", inbox.Filter{MessageID: "m99"}, "false", "false"},
		{"from", inbox.Filter{From: middle}, "m.received_at >= '" + middle.Format(time.RFC3339Nano) + "'", "m.received_at >= '" + middle.Format(time.RFC3339Nano) + "'"},
		{"to", inbox.Filter{To: middle}, "m.received_at < '" + middle.Format(time.RFC3339Nano) + "'", "m.received_at < '" + middle.Format(time.RFC3339Nano) + "'"},
	}
	for _, status := range inbox.Statuses() {
		where := fmt.Sprintf("s.status = '%s'", status)
		messageWhere := fmt.Sprintf("status = '%s'", status)
		if status == inbox.Discarded {
			messageWhere = "status = 'DONE' AND discarded"
		}
		filters = append(filters,
			filter{string(status), inbox.Filter{Status: status}, where, messageWhere},
			filter{
				string(status) + " at a handler",
				inbox.Filter{Status: status, HandlerID: f.handler, MessageType: "paid"},
				where + fmt.Sprintf(" AND m.message_type = 'paid' AND s.handler_id = %d", f.handler), "",
			},
			filter{string(status) + " and biz key", inbox.Filter{Status: status, BizKey: "order 1"}, where + " AND m.biz_key = 'order 1'", messageWhere + " AND m.biz_key = 'order 1'"},
		)
	}
	const one = `
WITH m AS (
    SELECT m.*, (SELECT CASE WHEN s.status = 'DISCARDED' THEN 'DONE' ELSE s.status END FROM delivery_status AS s WHERE s.id = m.id
                 ORDER BY array_position('{MANUAL_REQUIRED,PROCESSING,FAILED,PENDING,WAITING,DONE,DISCARDED}', s.status) LIMIT 1) AS status,
           EXISTS (SELECT FROM delivery_status AS s WHERE s.id = m.id AND s.status = 'DISCARDED') AS discarded
    FROM inbox_message AS m
) `
	for _, test := range filters {
		t.Run(test.name, func(t *testing.T) {
			wantDeliveries := f.texts(t, `SELECT s.id || '.' || s.handler_id || ' ' || s.status FROM delivery_status AS s JOIN inbox_message AS m USING (id)
WHERE s.handler_id IS NOT NULL AND `+test.where+` ORDER BY s.id DESC, s.handler_id DESC`)
			where := test.messageWhere
			if where == "" {
				where = `EXISTS (SELECT FROM delivery_status AS s WHERE s.id = m.id AND ` + test.where + `)`
			}
			wantMessages := f.texts(t, one+`SELECT m.id || ' ' || m.status FROM m WHERE `+where+` ORDER BY m.id DESC`)
			for _, limit := range []int{1, 3, 500} {
				var deliveries, messages []string
				for after, pages := (inbox.DeliveryID{}), 0; pages == 0 || after.Message != 0; pages++ {
					page, err := f.ListDeliveries(t.Context(), test.filter, after, limit)
					if err != nil || len(page.Items) > limit || pages > 200 {
						t.Fatalf("ListDeliveries = %d items, %v, after %d pages", len(page.Items), err, pages)
					}
					for _, d := range page.Items {
						deliveries = append(deliveries, d.DeliveryID.String()+" "+string(d.Status))
					}
					after = page.Next
				}
				for after, pages := (inbox.DeliveryID{}), 0; pages == 0 || after.Message != 0; pages++ {
					page, err := f.ListMessages(t.Context(), test.filter, after, limit)
					if err != nil || len(page.Items) > limit || pages > 200 {
						t.Fatalf("ListMessages = %d items, %v, after %d pages", len(page.Items), err, pages)
					}
					for _, m := range page.Items {
						messages = append(messages, fmt.Sprintf("%d %s", m.ID, m.Status))
					}
					after = page.Next
				}
				if !slices.Equal(deliveries, wantDeliveries) {
					t.Errorf("deliveries by %d = %q, want %q", limit, deliveries, wantDeliveries)
				}
				if !slices.Equal(messages, wantMessages) {
					t.Errorf("messages by %d = %q, want %q", limit, messages, wantMessages)
				}
			}
		})
	}
}

// TestFailedDeliveries: the filters of deliveries by their attempts, alone and with others.
func TestFailedDeliveries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := f.history(t)
	const attempt = "EXISTS (SELECT FROM attempt AS a WHERE (a.id, a.handler_id) = (s.id, s.handler_id) AND "
	for _, test := range []struct {
		name   string
		filter inbox.Filter
		where  string
	}{
		{"class", inbox.Filter{ErrorClass: inbox.ClassTimeout}, attempt + "class = 'timeout')"},
		{"class and status", inbox.Filter{ErrorClass: inbox.ClassStatus, Status: inbox.Discarded}, attempt + "class = 'status') AND s.status = 'DISCARDED'"},
		{"class and a live status", inbox.Filter{ErrorClass: inbox.ClassTimeout, Status: inbox.Failed}, attempt + "class = 'timeout') AND s.status = 'FAILED'"},
		{"class and key", inbox.Filter{ErrorClass: inbox.ClassStatus, OrderingKey: "cart 1"}, attempt + "class = 'status') AND m.ordering_key = 'cart 1'"},
		{"class at a handler", inbox.Filter{ErrorClass: inbox.ClassStatus, HandlerID: other}, "false"},
		{"answer of a failure", inbox.Filter{ResponseStatus: 500, HandlerID: f.handler}, attempt + "response_status = 500)"},
		{"class and an answer of another", inbox.Filter{ResponseStatus: 500, ErrorClass: inbox.ClassTimeout}, "false"},
		{"answer of success", inbox.Filter{ResponseStatus: 200}, "s.response_status = 200"},
		{"no such class", inbox.Filter{ErrorClass: inbox.ClassTLS}, "false"},
		{"class of old", inbox.Filter{ErrorClass: inbox.ClassStatus, To: time.Now().Add(-time.Hour)}, "false"},
	} {
		want := f.texts(t, `SELECT s.id || '.' || s.handler_id FROM delivery_status AS s JOIN inbox_message AS m USING (id)
WHERE s.handler_id IS NOT NULL AND `+test.where+` ORDER BY s.id DESC, s.handler_id DESC`)
		if test.where != "false" && len(want) == 0 {
			t.Errorf("%s: the history has none", test.name)
		}
		for _, limit := range []int{1, 500} {
			var got []string
			for after, pages := (inbox.DeliveryID{}), 0; pages == 0 || after.Message != 0; pages++ {
				page, err := f.ListDeliveries(t.Context(), test.filter, after, limit)
				if err != nil || len(page.Items) > limit || pages > 200 {
					t.Fatalf("%s: %d items, %v, after %d pages", test.name, len(page.Items), err, pages)
				}
				for _, d := range page.Items {
					got = append(got, d.DeliveryID.String())
				}
				after = page.Next
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s by %d = %q, want %q", test.name, limit, got, want)
			}
		}
	}
}

func (f *fixture) texts(t *testing.T, sql string) []string {
	t.Helper()
	rows, err := f.pool.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var list []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		list = append(list, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}

// TestListsUnderInserts: pages that are read while messages arrive hold each older message once.
func TestListsUnderInserts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	arrive := func(from, n int) {
		var batch []inbox.Message
		for i := range n {
			batch = append(batch, f.message(fmt.Sprintf("m%d", from+i)))
		}
		f.insert(t, batch...)
	}
	arrive(0, 100)
	seen := map[string]int{}
	var last int64
	var after inbox.DeliveryID
	for pages := 0; pages == 0 || after.Message != 0; pages++ {
		page, err := f.ListMessages(t.Context(), inbox.Filter{}, after, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range page.Items {
			if last != 0 && m.ID >= last {
				t.Errorf("message %d came after %d", m.ID, last)
			}
			last = m.ID
			seen[m.MessageID]++
		}
		after = page.Next
		arrive(100+7*pages, 7)
	}
	for i := range 100 {
		if n := seen[fmt.Sprintf("m%d", i)]; n != 1 {
			t.Errorf("message m%d was listed %d times, want once", i, n)
		}
	}
	if len(seen) != 100 {
		t.Errorf("%d messages were listed, want the 100 that were there", len(seen))
	}
}

// TestListsWalkInSteps: a filter that matches little is followed over many steps and, beyond what one page
// may look at, over pages that can be empty.
func TestListsWalkInSteps(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	other := f.addHandler(t, "other")
	f.readVersion(t)
	const total = 12_000
	for from := 0; from < total; from += 1000 {
		var batch []inbox.Message
		for i := from; i < from+1000; i++ {
			m := f.message(fmt.Sprintf("m%d", i))
			if i < total-1 { // the newest has one delivery, so a step of rows ends among those of a message
				m.Routes = append(m.Routes, inbox.Route{HandlerID: other, MaxRetryCount: 2})
			}
			if i%2999 == 0 {
				m.MessageType = "rare"
			}
			batch = append(batch, m)
		}
		f.insert(t, batch...)
	}
	f.exec(t, `UPDATE delivery SET status = 'FAILED', retry_count = 1 WHERE handler_id = $1
AND (id % 3001 = 1 OR id IN (SELECT id FROM inbox_message ORDER BY id DESC OFFSET 2490 LIMIT 20))`, f.handler)
	f.exec(t, `UPDATE delivery SET status = 'MANUAL_REQUIRED', next_retry_time = 'infinity' WHERE id % 7 = 3 AND handler_id = $1`, other)
	for _, test := range []struct {
		name   string
		filter inbox.Filter
		want   string // statement that counts
	}{
		{"rare type", inbox.Filter{MessageType: "rare"}, `SELECT count(*) FROM inbox_message WHERE message_type = 'rare'`},
		{"few of one status", inbox.Filter{Status: inbox.Failed, HandlerID: f.handler}, `SELECT count(*) FROM delivery WHERE status = 'FAILED'`},
		{"most of one status", inbox.Filter{Status: inbox.Pending}, `SELECT count(DISTINCT id) FROM delivery AS d WHERE status = 'PENDING'
AND NOT EXISTS (SELECT FROM delivery AS o WHERE o.id = d.id AND o.status <> 'PENDING')`},
		{"parked", inbox.Filter{Status: inbox.ManualRequired}, `SELECT count(*) FROM delivery WHERE status = 'MANUAL_REQUIRED'`},
		{"none", inbox.Filter{Status: inbox.Done}, `SELECT 0`},
	} {
		seen, short := map[int64]bool{}, false
		var after inbox.DeliveryID
		for pages := 0; pages == 0 || after.Message != 0; pages++ {
			page, err := f.ListMessages(t.Context(), test.filter, after, 500)
			if err != nil || pages > 50 {
				t.Fatalf("%s: %v, after %d pages", test.name, err, pages)
			}
			for _, m := range page.Items {
				if seen[m.ID] {
					t.Errorf("%s: message %d came twice", test.name, m.ID)
				}
				seen[m.ID] = true
			}
			after = page.Next
			short = short || after.Message != 0 && len(page.Items) < 500
		}
		if want := f.value(t, test.want); int64(len(seen)) != want {
			t.Errorf("%s: %d messages were listed, want %d", test.name, len(seen), want)
		}
		if test.name == "rare type" && !short {
			t.Errorf("%s: no page stopped at its bound", test.name)
		}
	}
}
