package processor

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	transitions    *prometheus.CounterVec
	attempts       *prometheus.CounterVec
	attemptSeconds prometheus.Histogram
	claimLatency   prometheus.Histogram
	wait           prometheus.Histogram
	endToEnd       prometheus.Histogram
	stale          prometheus.Counter
}

var latencyBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inboxd_transitions_total", Help: "Deliveries that came to a status, by this instance.",
		}, []string{"status"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inboxd_attempts_total", Help: "Attempts by handler and class of failure; ok is a success.",
		}, []string{"handler", "class"}),
		attemptSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "inboxd_attempt_seconds", Help: "How long attempts took.", Buckets: latencyBuckets,
		}),
		claimLatency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "inboxd_claim_seconds", Help: "How long claim statements took.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5},
		}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "inboxd_delivery_wait_seconds", Help: "From receipt to the start of the first attempt.",
			Buckets: latencyBuckets,
		}),
		endToEnd: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "inboxd_end_to_end_seconds", Help: "From receipt to the handler's 2xx, retries included.",
			Buckets: latencyBuckets,
		}),
		stale: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "inboxd_stale_writebacks_total", Help: "Results that came after their claim was lost, and changed nothing.",
		}),
	}
	r.MustRegister(m.transitions, m.attempts, m.attemptSeconds, m.claimLatency, m.wait, m.endToEnd, m.stale)
	return m
}
