package inbox

import (
	"math"
	"math/rand/v2"
	"time"
)

// Backoff is a handler's delay between attempts.
type Backoff struct {
	Base time.Duration // the delay after the first failure; more than zero
	Cap  time.Duration // no delay is longer, jitter apart; at least Base
}

// Delay returns min(Base·2^retryCount, Cap) without overflow, for any retryCount from 0 on.
func (b Backoff) Delay(retryCount int) time.Duration {
	delay := b.Base
	for range retryCount {
		if delay >= b.Cap/2 {
			// Doubling again would reach the cap or overflow.
			return b.Cap
		}
		delay *= 2
	}
	return min(delay, b.Cap)
}

// Jittered returns Delay plus up to a tenth of it, so that deliveries that failed together don't come
// back together.
func (b Backoff) Jittered(retryCount int) time.Duration {
	delay := b.Delay(retryCount)
	if most := min(delay/10, math.MaxInt64-delay); most > 0 {
		delay += rand.N(most)
	}
	return delay
}
