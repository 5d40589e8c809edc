package ingest

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	accepted   *prometheus.CounterVec
	duplicates *prometheus.CounterVec
	rejected   *prometheus.CounterVec
	latency    prometheus.Histogram
	batchSize  prometheus.Histogram
	intake     prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		accepted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inboxd_messages_accepted_total", Help: "Messages committed for the first time.",
		}, []string{"source"}),
		duplicates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inboxd_messages_duplicate_total",
			Help: "Messages whose (source, message_id) was known; body tells whether the bytes were the same.",
		}, []string{"source", "body"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inboxd_requests_rejected_total",
			Help: "Requests answered without 2xx; an unknown source counts under the source \"\".",
		}, []string{"source", "reason"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "inboxd_ingest_seconds", Help: "From the request's headers to the commit.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "inboxd_ingest_batch_messages", Help: "Messages that one transaction tried to commit.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256},
		}),
		intake: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "inboxd_intake_bytes", Help: "Bytes reserved for requests that are not answered yet.",
		}),
	}
	r.MustRegister(m.accepted, m.duplicates, m.rejected, m.latency, m.batchSize, m.intake)
	return m
}
