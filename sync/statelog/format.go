package statelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"

	"headgate/gateway/luastate"
)

const (
	magic      = "HGSTATE1"
	batchMagic = "HGB1"
	// batchHeaderBytes: magic, flags u32, revision u64, length u32, crc u32.
	batchHeaderBytes = 4 + 4 + 8 + 4 + 4
	flagLast         = uint32(1)
	// maxPayloadBytes of a batch, unless one record alone is larger.
	maxPayloadBytes = 1 << 20
	// maxBatchBytes bounds what a reader takes for one payload: a larger length is damage.
	maxBatchBytes = luastate.RecordHeaderBytes + luastate.MaxKeyBytes + luastate.MaxValueBytes
	hashBytes     = 32
)

// ForeignError is a file that this version does not understand as a whole.
type ForeignError struct {
	// What is foreign about it.
	What string
}

// Error implements error.
func (e *ForeignError) Error() string {
	return "not a state log of this version: " + e.What
}

func bodyBytes(hash string, size int) int64 {
	return int64(luastate.RecordHeaderBytes + len(hash) + size)
}

func pointerBytes(name string) int64 {
	return int64(luastate.RecordHeaderBytes + len(name) + hashBytes)
}

func liveBytes(pointers map[string]string, bodies map[string]place) int64 {
	var n int64
	for name := range pointers {
		n += pointerBytes(name)
	}
	for hash, p := range bodies {
		n += bodyBytes(hash, p.size)
	}
	return n
}

// encoded is a push as it stands in the file.
type encoded struct {
	bytes  []byte
	places map[string]int64 // hash → offset of the body within bytes
}

func encode(revision uint64, records []luastate.Record) encoded {
	schema := schemaRecord()
	payload, bodies := schema.Len(), 0
	for _, r := range records {
		payload += r.Len()
		if r.Op == luastate.OpBody {
			bodies++
		}
	}
	w := newWriter("", revision, payload, bodies)
	w.add(schema)
	for _, r := range records {
		w.add(r)
	}
	return w.finish()
}

func schemaRecord() luastate.Record {
	return luastate.Record{Op: luastate.OpBody, Key: luastate.SchemaKey, Value: strconv.AppendInt(nil, luastate.Schema, 10)}
}

// writer builds the batches of one push.
type writer struct {
	revision uint64
	out      []byte
	start    int // of the open batch's header
	places   map[string]int64
}

// newWriter begins a push behind head. Its room is for so many bytes of records, and bodies among them, that are to come: of
// 10 MB, growing would leave as much again behind, and more.
func newWriter(head string, revision uint64, payload, bodies int) *writer {
	room := len(head) + payload + (payload/maxPayloadBytes*2+1)*batchHeaderBytes // a batch is at least half full, but the last
	w := &writer{revision: revision, out: append(make([]byte, 0, room), head...), places: make(map[string]int64, bodies)}
	w.open()
	return w
}

func (w *writer) open() {
	w.start = len(w.out)
	w.out = append(w.out, make([]byte, batchHeaderBytes)...)
}

func (w *writer) add(r luastate.Record) {
	size := r.Len()
	payload := len(w.out) - w.start - batchHeaderBytes
	if payload > 0 && payload+size > maxPayloadBytes {
		w.seal(0)
		w.open()
	}
	w.out = luastate.AppendRecord(w.out, r)
	if r.Op == luastate.OpBody {
		if _, twice := w.places[r.Key]; !twice {
			w.places[r.Key] = int64(len(w.out) - len(r.Value))
		}
	}
}

func (w *writer) seal(flags uint32) {
	h := w.out[w.start:]
	copy(h, batchMagic)
	binary.BigEndian.PutUint32(h[4:], flags)
	binary.BigEndian.PutUint64(h[8:], w.revision)
	binary.BigEndian.PutUint32(h[16:], uint32(len(h)-batchHeaderBytes))
	binary.BigEndian.PutUint32(h[20:], checksum(h))
}

// checksum of a batch: flags, revision, length, payload.
func checksum(batch []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(batch[4:20]), crc32.IEEETable, batch[batchHeaderBytes:])
}

func (w *writer) finish() encoded {
	w.seal(flagLast)
	return encoded{bytes: w.out, places: w.places}
}

// contents is what a reader found.
type contents struct {
	pointers map[string]string
	bodies   map[string]place
	revision uint64
	end      int64 // offset behind the last whole push; 0 when not even the magic is whole
	total    int64
}

// read takes in all whole pushes of f. It ends without an error at the first byte that does not fit;
// the error is a *ForeignError for a file of another kind, or one of reading.
func read(f *os.File) (contents, error) {
	info, err := f.Stat()
	if err != nil {
		return contents{}, err
	}
	return readFrom(f, info.Size())
}

func readFrom(r io.ReaderAt, total int64) (contents, error) {
	c := contents{pointers: make(map[string]string), bodies: make(map[string]place), total: total}
	head := make([]byte, min(int64(len(magic)), total))
	if _, err := r.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return c, err
	}
	if magic[:len(head)] != string(head) {
		return c, &ForeignError{What: "it does not begin with " + magic}
	}
	if len(head) < len(magic) {
		return c, nil
	}
	c.end = int64(len(magic))
	for {
		p, err := readPush(r, c.end, total)
		if errors.Is(err, errBroken) {
			return c, nil
		}
		if err != nil {
			return c, err
		}
		if !c.apply(p) {
			return c, nil
		}
	}
}

// errBroken stands for bytes that are no whole push.
var errBroken = errors.New("no whole push")

// push is one read push; bodies are left in the file.
type push struct {
	revision uint64
	records  []located
	end      int64
	commits  int
	begun    bool // the schema was read
}

type located struct {
	op     luastate.Op
	key    string
	hash   string // of a P
	offset int64  // of a B's value
	size   int
}

func readPush(r io.ReaderAt, at, total int64) (push, error) {
	var p push
	for first := true; ; first = false {
		payload, flags, revision, err := readBatch(r, at, total)
		if err != nil {
			return p, err
		}
		if !first && revision != p.revision {
			return p, errBroken
		}
		p.revision = revision
		if err := p.take(payload, at+batchHeaderBytes); err != nil {
			return p, err
		}
		at += int64(batchHeaderBytes + len(payload))
		if flags&flagLast != 0 {
			if p.commits != 1 {
				return p, errBroken
			}
			p.end = at
			return p, nil
		}
	}
}

func readBatch(r io.ReaderAt, at, total int64) (payload []byte, flags uint32, revision uint64, err error) {
	if total-at < batchHeaderBytes {
		return nil, 0, 0, errBroken
	}
	var h [batchHeaderBytes]byte
	if _, err := r.ReadAt(h[:], at); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, 0, err
	}
	flags = binary.BigEndian.Uint32(h[4:])
	length := int64(binary.BigEndian.Uint32(h[16:]))
	if string(h[:4]) != batchMagic || flags&^flagLast != 0 ||
		length > maxBatchBytes || length > total-at-batchHeaderBytes {
		return nil, 0, 0, errBroken
	}
	batch := make([]byte, batchHeaderBytes+length)
	if _, err := r.ReadAt(batch, at); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, 0, err
	}
	if checksum(batch) != binary.BigEndian.Uint32(h[20:]) {
		return nil, 0, 0, errBroken
	}
	return batch[batchHeaderBytes:], flags, binary.BigEndian.Uint64(h[8:]), nil
}

// take parses the records of a batch whose payload begins at offset. The first batch of a push
// begins with the schema.
func (p *push) take(payload []byte, offset int64) error {
	rest := payload
	for len(rest) > 0 {
		rec, after, err := luastate.ParseRecord(rest)
		if err != nil {
			return errBroken
		}
		rest = after
		if !p.begun {
			if rec.Op != luastate.OpBody || rec.Key != luastate.SchemaKey {
				return &ForeignError{What: "a push does not begin with its schema"}
			}
			if string(rec.Value) != strconv.Itoa(luastate.Schema) {
				return &ForeignError{What: fmt.Sprintf("its schema is %.20q, this version's is %d", rec.Value, luastate.Schema)}
			}
			p.begun = true
			continue
		}
		l := located{op: rec.Op, key: rec.Key, size: len(rec.Value)}
		switch rec.Op {
		case luastate.OpBody:
			l.offset = offset + int64(len(payload)-len(rest)-len(rec.Value))
		case luastate.OpPointer:
			l.hash = string(rec.Value)
		case luastate.OpRevision:
			if string(rec.Value) != strconv.FormatUint(p.revision, 10) {
				return errBroken
			}
			p.commits++
		case luastate.OpDelete, luastate.OpDrop:
		default:
			return errBroken
		}
		p.records = append(p.records, l)
	}
	if !p.begun {
		return &ForeignError{What: "a push does not begin with its schema"}
	}
	return nil
}

// apply adds a push; false (and no change) when it does not fit what came before.
func (c *contents) apply(p push) bool {
	if !c.fits(p) {
		return false
	}
	for _, r := range p.records {
		switch r.op {
		case luastate.OpBody:
			if _, there := c.bodies[r.key]; !there {
				c.bodies[r.key] = place{offset: r.offset, size: r.size}
			}
		case luastate.OpPointer:
			c.pointers[r.key] = r.hash
		case luastate.OpDelete:
			delete(c.pointers, r.key)
		case luastate.OpDrop:
			delete(c.bodies, r.key)
		case luastate.OpRevision: // of the push as a whole, below
		}
	}
	c.revision, c.end = p.revision, p.end
	return true
}

// fits tells whether every pointer of p names a body that is there.
func (c *contents) fits(p push) bool {
	fresh := make(map[string]bool)
	for _, r := range p.records {
		switch r.op {
		case luastate.OpBody:
			fresh[r.key] = true
		case luastate.OpPointer:
			if _, there := c.bodies[r.hash]; !there && !fresh[r.hash] {
				return false
			}
		case luastate.OpRevision, luastate.OpDelete, luastate.OpDrop: // need nothing
		}
	}
	return true
}
