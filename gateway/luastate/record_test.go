package luastate

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRecordsRoundTrip(t *testing.T) {
	records := []Record{
		{Op: OpBody, Key: strings.Repeat("0", 32), Value: []byte(`{"a":1}`)},
		{Op: OpPointer, Key: "host/", Value: []byte(strings.Repeat("0", 32))},
		{Op: OpRevision, Value: []byte("7")},
		{Op: OpDelete, Key: "host/a.test"},
		{Op: OpDrop, Key: strings.Repeat("f", 32)},
		{Op: OpBody, Key: strings.Repeat("k", MaxKeyBytes), Value: bytes.Repeat([]byte("v"), MaxValueBytes)},
	}
	var b []byte
	for _, r := range records {
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		before := len(b)
		b = AppendRecord(b, r)
		if len(b)-before != r.Len() {
			t.Errorf("%c: %d bytes, Len %d", r.Op, len(b)-before, r.Len())
		}
	}
	for i, want := range records {
		var got Record
		var err error
		got, b, err = ParseRecord(b)
		if err != nil {
			t.Fatal(err)
		}
		if len(want.Value) == 0 {
			want.Value = []byte{}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("record %d: %s", i, diff)
		}
	}
	if len(b) != 0 {
		t.Errorf("%d bytes are left", len(b))
	}
}

func TestRecordLayout(t *testing.T) {
	got := AppendRecord(nil, Record{Op: OpPointer, Key: "host/a", Value: []byte("xyz")})
	if want := "P\x00\x06\x00\x00\x00\x03host/axyz"; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRecordErrors(t *testing.T) {
	whole := AppendRecord(nil, Record{Op: OpBody, Key: "k", Value: []byte("v")})
	for n := range len(whole) {
		if _, rest, err := ParseRecord(whole[:n]); !errors.Is(err, ErrShortRecord) || len(rest) != n {
			t.Errorf("%d bytes: %v, rest %d", n, err, len(rest))
		}
	}
	for _, bad := range []string{"Z", "B\x00\x00\x00\x10\x00\x01", "b\x00\x00\x00\x00\x00\x00"} {
		if _, _, err := ParseRecord([]byte(bad)); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for name, r := range map[string]Record{
		"operation": {Op: 'Z'}, "key": {Op: OpBody, Key: strings.Repeat("k", MaxKeyBytes+1)},
		"value": {Op: OpBody, Value: make([]byte, MaxValueBytes+1)},
	} {
		if err := r.Check(); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	for _, s := range []string{"", "P\x00\x06\x00\x00\x00\x03host/axyz", "R\x00\x00\x00\x00\x00\x017", "B\xff\xff\xff\xff\xff\xff", "Z"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, rest, err := ParseRecord(b)
		if err != nil {
			if !errors.Is(err, ErrShortRecord) && !errors.Is(err, ErrBadRecord) {
				t.Errorf("%v", err)
			}
			return
		}
		if err := r.Check(); err != nil {
			t.Errorf("parsed what cannot be encoded: %v", err)
		}
		if got := append(AppendRecord(nil, r), rest...); !bytes.Equal(got, b) {
			t.Errorf("%q became %q", b, got)
		}
	})
}
