package luastate

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Op says what a record does to the shared state.
type Op byte

// The operations, in the order in which they stand within a push: bodies, pointers, the commit,
// then what nobody refers to any more.
const (
	// OpBody adds an immutable body: the key is its hash. A body that is there already is skipped.
	OpBody Op = 'B'
	// OpPointer points a pointer (the key) to a hash (the value).
	OpPointer Op = 'P'
	// OpRevision commits: the revision becomes the decimal value. The key is empty.
	OpRevision Op = 'R'
	// OpDelete removes a pointer. The value is empty.
	OpDelete Op = 'D'
	// OpDrop removes the body of a hash. The value is empty.
	OpDrop Op = 'X'
)

// Limits of a record. The receiver keeps a whole record in memory, never in a temporary file.
const (
	MaxKeyBytes   = 1<<16 - 1
	MaxValueBytes = 1 << 20
	// RecordHeaderBytes is what a record needs beside its key and value.
	RecordHeaderBytes = 1 + 2 + 4
)

// SchemaKey is the key of the OpBody record that starts each push in the state log; its value is
// the decimal Schema.
const SchemaKey = "schema"

var (
	// ErrShortRecord is returned by ParseRecord when the bytes end within a record.
	ErrShortRecord = errors.New("record is cut short")
	// ErrBadRecord is returned by ParseRecord for bytes that cannot become a record.
	ErrBadRecord = errors.New("not a record")
)

// Record is one step of a push, on the control socket and in the state log.
type Record struct {
	Op    Op
	Key   string
	Value []byte
}

// Len is the length of the encoded record in bytes.
func (r Record) Len() int { return RecordHeaderBytes + len(r.Key) + len(r.Value) }

// Check tells why a record cannot be encoded: an unknown operation, a key or value above its limit.
func (r Record) Check() error {
	switch {
	case !r.Op.known():
		return fmt.Errorf("operation %q: %w", byte(r.Op), ErrBadRecord)
	case len(r.Key) > MaxKeyBytes:
		return fmt.Errorf("key of %d bytes, at most %d: %w", len(r.Key), MaxKeyBytes, ErrBadRecord)
	case len(r.Value) > MaxValueBytes:
		return fmt.Errorf("value of %d bytes under key %q, at most %d: %w",
			len(r.Value), r.Key, MaxValueBytes, ErrBadRecord)
	}
	return nil
}

func (o Op) known() bool {
	switch o {
	case OpBody, OpPointer, OpRevision, OpDelete, OpDrop:
		return true
	}
	return false
}

// AppendRecord appends the encoding of r to dst: op:u8 keyLength:u16 valueLength:u32 key value, big-endian.
// It does not check r; see Record.Check.
func AppendRecord(dst []byte, r Record) []byte {
	dst = append(dst, byte(r.Op))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(r.Key)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(r.Value)))
	dst = append(dst, r.Key...)
	return append(dst, r.Value...)
}

// ParseRecord reads the record at the start of b and returns what follows it. The value shares
// memory with b. Errors: ErrShortRecord (more bytes may complete it), ErrBadRecord (nothing will).
func ParseRecord(b []byte) (r Record, rest []byte, err error) {
	if len(b) == 0 {
		return Record{}, b, ErrShortRecord
	}
	if !Op(b[0]).known() {
		return Record{}, b, fmt.Errorf("operation %q: %w", b[0], ErrBadRecord)
	}
	if len(b) < RecordHeaderBytes {
		return Record{}, b, ErrShortRecord
	}
	keyLen := int(binary.BigEndian.Uint16(b[1:]))
	valueLen := binary.BigEndian.Uint32(b[3:])
	if valueLen > MaxValueBytes {
		return Record{}, b, fmt.Errorf("value of %d bytes, at most %d: %w", valueLen, MaxValueBytes, ErrBadRecord)
	}
	end := RecordHeaderBytes + keyLen + int(valueLen)
	if len(b) < end {
		return Record{}, b, ErrShortRecord
	}
	key := b[RecordHeaderBytes : RecordHeaderBytes+keyLen]
	return Record{Op: Op(b[0]), Key: string(key), Value: b[RecordHeaderBytes+keyLen : end : end]}, b[end:], nil
}
