package api

import (
	"context"
	"net/url"
	"time"

	"github.com/inboxd/inboxd/inbox"
)

// StatsStore tells how the inbox does. It answers quickly, however many rows there are.
type StatsStore interface {
	Stats(ctx context.Context, within *inbox.Reach, window time.Duration) (*inbox.Stats, error)
	System(ctx context.Context) (*inbox.System, error)
}

// defaultMinutes is how far back rates and latencies go.
const defaultMinutes = 5

// GetStats implements the operation.
func (s *server) GetStats(ctx context.Context, request GetStatsRequestObject) (GetStatsResponseObject, error) {
	stats, err := s.store.Stats(ctx, within(ctx), time.Duration(or(request.Params.Minutes, defaultMinutes))*time.Minute)
	if err != nil {
		return nil, err
	}
	answer := GetStats200JSONResponse{
		At: stats.At.UTC(), Window: formatDuration(stats.Window),
		Received: showRate(stats.Received), Attempts: showRate(stats.Attempts), Failed: showRate(stats.Failed), Ended: showRate(stats.Ended),
		Unfinished: showCount(stats.Unfinished), Backlog: showBacklog(stats.Backlog),
		Handlers: make([]HandlerStats, len(stats.Handlers)), Parking: make([]ParkingPlace, len(stats.Parking)),
	}
	for i, h := range stats.Handlers {
		answer.Handlers[i] = HandlerStats{
			Handler: h.Handler, Paused: h.Paused, Deleted: h.Deleted, Backlog: showBacklog(h.Backlog),
			OldestDue: someTime(h.OldestDue), OldestParked: someTime(h.OldestParked),
			Done: showRate(h.Done), Discarded: showRate(h.Discarded), Failed: showRate(h.Failed),
			EndToEnd: showPercentiles(h.EndToEnd), Attempt: showPercentiles(h.Attempt),
		}
		if !h.OldestDue.IsZero() {
			answer.Handlers[i].Waited = some(formatDuration(max(stats.At.Sub(h.OldestDue), 0).Round(time.Millisecond)))
		}
	}
	for i, p := range stats.Parking {
		answer.Parking[i] = ParkingPlace{
			Place: ParkingPlacePlace(p.Place), Handler: some(p.Handler), Source: some(p.Source), Oldest: someTime(p.Oldest), Find: findParked(p),
		}
		if p.Count.N > 0 {
			answer.Parking[i].Count = some(showCount(p.Count))
		}
	}
	return answer, nil
}

// findParked returns where this API lists what is in a place.
func findParked(p inbox.ParkingPlace) (paths []string) {
	var statuses []inbox.Status
	switch p.Place {
	case inbox.PlaceParked:
		statuses = []inbox.Status{inbox.ManualRequired}
	case inbox.PlacePaused, inbox.PlaceHandlerSecret:
		statuses = []inbox.Status{inbox.Pending, inbox.Failed}
	case inbox.PlaceHandlerDeleted:
		statuses = []inbox.Status{inbox.Pending, inbox.Failed, inbox.Waiting}
	case inbox.PlaceLeaseExpired:
		statuses = []inbox.Status{inbox.Processing}
	case inbox.PlaceUnrouted:
		return []string{prefix + "/messages?status=" + string(inbox.Unrouted)}
	default:
		return []string{prefix + "/sources/" + p.Source}
	}
	for _, status := range statuses {
		paths = append(paths, prefix+"/deliveries?handler="+url.QueryEscape(p.Handler)+"&status="+string(status))
	}
	return paths
}

func showRate(r inbox.Rate) Rate { return Rate{PerMinute: r.PerMinute, Estimated: some(r.Estimated)} }

func showCount(c inbox.Count) Count {
	return Count{Count: c.N, AtLeast: some(c.AtLeast), Estimated: some(c.Estimated)}
}

func showBacklog(b map[inbox.Status]inbox.Count) Backlog {
	return Backlog{
		Pending: showCount(b[inbox.Pending]), Failed: showCount(b[inbox.Failed]), Processing: showCount(b[inbox.Processing]),
		Waiting: showCount(b[inbox.Waiting]), ManualRequired: showCount(b[inbox.ManualRequired]),
	}
}

func showPercentiles(p inbox.Percentiles) *Percentiles {
	if p.Sample == 0 {
		return nil
	}
	return &Percentiles{Sample: p.Sample, P50: formatDuration(p.P50), P95: formatDuration(p.P95), P99: formatDuration(p.P99)}
}

// GetSystem implements the operation.
func (s *server) GetSystem(ctx context.Context, _ GetSystemRequestObject) (GetSystemResponseObject, error) {
	system, err := s.store.System(ctx)
	if err != nil {
		return nil, err
	}
	answer := GetSystem200JSONResponse{
		At: system.At.UTC(), Version: s.version, Instance: s.instance, Postgresql: system.PostgreSQL,
		Instances: make([]Instance, len(system.Instances)), Tables: make([]Table, len(system.Tables)),
	}
	answer.Schema.Applied, answer.Schema.Known = system.Schema.Applied, system.Schema.Known
	answer.Leader.Owner, answer.Leader.Term = system.Leader.Owner, system.Leader.Term
	answer.Leader.Leading = system.Leader.ExpiresAt.After(system.At)
	if answer.Leader.Leading {
		answer.Leader.ExpiresAt = someTime(system.Leader.ExpiresAt)
	}
	for i, n := range system.Instances {
		answer.Instances[i] = Instance{Owner: n.Owner, Leading: n.Leading, Claims: n.Claims.N}
	}
	for i, t := range system.Tables {
		answer.Tables[i] = Table{
			Name: t.Name, Rows: showCount(t.Rows), Bytes: t.Bytes, Until: someTime(t.Until), Partitions: make([]Partition, len(t.Partitions)),
		}
		for j, p := range t.Partitions {
			answer.Tables[i].Partitions[j] = Partition{
				Name: p.Name, Default: some(p.Default), From: someTime(p.From), To: someTime(p.To), Rows: showCount(p.Rows), Bytes: p.Bytes,
			}
		}
	}
	if h := system.Oldest; h != nil {
		answer.OldestSnapshot = &Holder{Kind: HolderKind(h.Kind), Name: h.Name, Transactions: h.Age, Open: someDuration(h.Open)}
	}
	return answer, nil
}
