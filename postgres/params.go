package postgres

import (
	"encoding/binary"
	"sync"
	"time"
)

// params encodes a statement's parameters in PostgreSQL's binary form into one buffer that is used again.
// pgx's own encoding took a sixth of the gateway's CPU on the ingest path, most of it for growing buffers of
// megabytes a second; everywhere else pgx encodes.
//
// An array is written by array, one call for each element, and end; a scalar by its call and end.
type params struct {
	buf  []byte
	ends []int // where each parameter ends in buf
}

var paramsPool = sync.Pool{New: func() any { return new(params) }}

func newParams() *params { return paramsPool.Get().(*params) }

// keptParams is what a buffer may hold to be kept: a batch of the usual size, not the body of a large one.
const keptParams = 2 << 20

// free gives the buffer back; the values are then no longer valid.
func (p *params) free() {
	if cap(p.buf) > keptParams {
		return
	}
	p.buf, p.ends = p.buf[:0], p.ends[:0]
	paramsPool.Put(p)
}

// values returns the parameters. They are valid until free.
func (p *params) values() [][]byte {
	values := make([][]byte, len(p.ends))
	start := 0
	for i, end := range p.ends {
		values[i] = p.buf[start:end:end]
		start = end
	}
	return values
}

// end ends a parameter.
func (p *params) end() { p.ends = append(p.ends, len(p.buf)) }

// array begins a one-dimensional array of n elements (array_recv in PostgreSQL's arrayfuncs.c).
func (p *params) array(elementOID uint32, n int) {
	if n == 0 {
		p.int4(0) // an empty array has no dimension
		p.int4(0)
		p.int4(int32(elementOID))
		return
	}
	p.int4(1) // dimensions
	p.int4(1) // there may be NULLs
	p.int4(int32(elementOID))
	p.int4(int32(n))
	p.int4(1) // lower bound
}

func (p *params) int4(v int32) { p.buf = binary.BigEndian.AppendUint32(p.buf, uint32(v)) }
func (p *params) int8(v int64) { p.buf = binary.BigEndian.AppendUint64(p.buf, uint64(v)) }

func (p *params) element4(v int32) {
	p.int4(4)
	p.int4(v)
}

func (p *params) element8(v int64) {
	p.int4(8)
	p.int8(v)
}

func (p *params) bool(v bool) {
	p.int4(1)
	if v {
		p.buf = append(p.buf, 1)
	} else {
		p.buf = append(p.buf, 0)
	}
}

func (p *params) text(v string) {
	p.int4(int32(len(v)))
	p.buf = append(p.buf, v...)
}

func (p *params) bytes(v []byte) {
	p.int4(int32(len(v)))
	p.buf = append(p.buf, v...)
}

func (p *params) null() { p.int4(-1) }

func (p *params) textOrNull(v string) {
	if v == "" {
		p.null()
		return
	}
	p.text(v)
}

// epoch is where PostgreSQL's timestamps begin; they count microseconds.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// time encodes a timestamptz; the zero time is NULL.
func (p *params) time(v time.Time) {
	if v.IsZero() {
		p.null()
		return
	}
	p.element8(v.UnixMicro() - epoch.UnixMicro())
}
