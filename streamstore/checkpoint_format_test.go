package streamstore

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"testing"
)

func exampleManifest() *manifest {
	n := nonce{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	return &manifest{
		shard:    7,
		position: position{number: 300, epoch: 5, nonce: n, appendTo: 9000},
		base:     position{number: 100, epoch: 4, nonce: nonce{9}, appendTo: 5000},
		ahead:    5010,
		created:  1700000000000,
		parts: []part{
			{kind: partTable, crc: 0xdeadbeef, size: 1000, name: partName{100, 4, nonce{9}, 0}},
			{kind: partBundle, level: 1, crc: 0xfeedf00d, size: 2000, after: 100, last: 250, name: partName{250, 5, n, 1}},
			{kind: partBundle, crc: 1, size: 64, after: 250, last: 300, name: partName{300, 5, n, 2}},
		},
	}
}

func equalManifests(a, b *manifest) bool {
	return a.shard == b.shard && a.position == b.position && a.base == b.base && a.ahead == b.ahead && a.created == b.created && slices.Equal(a.parts, b.parts)
}

// The bytes of a manifest do not change: newer releases must read those of older ones.
func TestManifestGolden(t *testing.T) {
	want := "42524b4c54434b500001000000000007" + // magic, version, shard
		"000000000000012c00000000000000050102030405060708090a0b0c0d0e0f100000000000002328" + // position
		"0000000000000064000000000000000409000000000000000000000000000000" + "0000000000001388" + // base
		"00000000000013920000018bcfe568000000000300000000" + // ahead, created, parts
		"01000000deadbeef00000000000003e800000000000000000000000000000000" + "0000000000000064000000000000000409000000000000000000000000000000" + "0000000000000000" +
		"02010000feedf00d00000000000007d0000000000000006400000000000000fa" + "00000000000000fa00000000000000050102030405060708090a0b0c0d0e0f10" + "0000000000000001" +
		"0200000000000001000000000000004000000000000000fa000000000000012c" + "000000000000012c00000000000000050102030405060708090a0b0c0d0e0f10" + "0000000000000002"
	b := exampleManifest().encode()
	if got := hex.EncodeToString(b[:len(b)-manifestFooterSize]); got != want {
		t.Errorf("manifest\n%s, want\n%s", got, want)
	}
	m, err := decodeManifest("x", 7, 300, b)
	if err != nil || !equalManifests(m, exampleManifest()) {
		t.Errorf("decoded %+v, %v", m, err)
	}
	for i := range b {
		flipped := bytes.Clone(b)
		flipped[i] ^= 1
		if _, err := decodeManifest("x", 7, 300, flipped); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d flipped: %v", i, err)
		}
		if _, err := decodeManifest("x", 7, 300, b[:i]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut at byte %d: %v", i, err)
		}
	}
	if _, err := decodeManifest("x", 7, 299, b); !errors.Is(err, ErrCorrupt) {
		t.Errorf("manifest under another number: %v", err)
	}
}

// Parts that do not lead from the base to the checkpoint's commit are refused, although
// the checksum is right.
func TestManifestPartsInOrder(t *testing.T) {
	for what, change := range map[string]func(m *manifest){
		"a gap":                      func(m *manifest) { m.parts[2].after = 251 },
		"an empty bundle":            func(m *manifest) { m.parts[2].last = 250 },
		"the end missing":            func(m *manifest) { m.parts = m.parts[:2] },
		"the beginning missing":      func(m *manifest) { m.parts = m.parts[2:] },
		"a table behind bundles":     func(m *manifest) { m.parts = append(m.parts, m.parts[0]) },
		"an unknown kind":            func(m *manifest) { m.parts[0].kind = 3 },
		"a part without content":     func(m *manifest) { m.parts[0].size = 0 },
		"a part larger than allowed": func(m *manifest) { m.parts[0].size = maxPartBytes + 1 },
	} {
		m := exampleManifest()
		change(m)
		if _, err := decodeManifest("x", 7, 300, m.encode()); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestCheckpointNames(t *testing.T) {
	p := partName{42, 7, nonce{0xab, 15: 1}, 3}
	if got, want := p.object(0), "shards/0/state/00000000000000000042-7-ab000000000000000000000000000001-3"; got != want {
		t.Errorf("part %q, want %q", got, want)
	}
	if got, ok := parsePartName(0, p.object(0)); !ok || got != p {
		t.Errorf("parsed %+v, %v", got, ok)
	}
	if got, want := checkpointName(2, 42), "shards/2/checkpoints/00000000000000000042"; got != want {
		t.Errorf("checkpoint %q, want %q", got, want)
	}
	for _, name := range []string{"", "x", "shards/0/state/00000000000000000042-7-ab-3", p.object(1), p.object(0) + "0x", "shards/0/state/+0000000000000000042-7-ab000000000000000000000000000001-3"} {
		if _, ok := parsePartName(0, name); ok {
			t.Errorf("%q passes for a part", name)
		}
		if _, ok := parseCheckpointName(0, name); ok {
			t.Errorf("%q passes for a checkpoint", name)
		}
	}
}

// exampleBundle holds the commits 3, 4 and 6 after 2.
func exampleBundle(t testing.TB) []byte {
	t.Helper()
	codec := newStateCodec()
	b, previous := make([]byte, bundleHeaderSize), uint64(2)
	for _, number := range []uint64{3, 4, 6} {
		h := commitHeader{number: number, previous: previous, epoch: 1, claim: number == 3}
		object := codec.seal(&h, make([]byte, commitHeaderSize), bytes.Repeat([]byte("state"), int(number-3)))
		compressed, err := h.check("x", object[commitHeaderSize:])
		if err != nil {
			t.Fatal(err)
		}
		b, previous = appendSection(b, &h, compressed), number
	}
	encodeBundleHeader(b, 0, 2, 6)
	return b
}

func readBundle(b []byte) (numbers []uint64, err error) {
	body, err := bundleBody("x", 0, 2, 6, b)
	if err != nil {
		return nil, err
	}
	err = eachSection("x", 2, body, func(s section) error {
		numbers = append(numbers, s.header.number)
		return nil
	})
	return numbers, err
}

func TestBundle(t *testing.T) {
	b := exampleBundle(t)
	if got, err := readBundle(b); err != nil || !slices.Equal(got, []uint64{3, 4, 6}) {
		t.Errorf("commits %v, %v", got, err)
	}
	if got, want := hex.EncodeToString(b[:32]), "42524b4c5442444c0001000000000000"+"00000000000000020000000000000006"; got != want {
		t.Errorf("header %s, want %s", got, want)
	}
	for i := range b {
		flipped := bytes.Clone(b)
		flipped[i] ^= 1
		if _, err := readBundle(flipped); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d flipped: %v", i, err)
		}
		if _, err := readBundle(b[:i]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut at byte %d: %v", i, err)
		}
	}
}

func FuzzManifest(f *testing.F) {
	b := exampleManifest().encode()
	f.Add(b)
	f.Add(b[:manifestHeaderSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeManifest("x", 7, 300, b)
		if err == nil && !bytes.Equal(m.encode()[:10], b[:10]) {
			t.Errorf("decoded %+v", m)
		}
	})
}

func FuzzBundle(f *testing.F) {
	f.Add(exampleBundle(f)[bundleHeaderSize:])
	f.Fuzz(func(t *testing.T, body []byte) {
		b := append(make([]byte, bundleHeaderSize), body...)
		encodeBundleHeader(b, 0, 2, 6) // so that the fuzzer gets behind the checksum
		total := 0
		body, err := bundleBody("x", 0, 2, 6, b)
		if err != nil {
			t.Fatal(err)
		}
		_ = eachSection("x", 2, body, func(s section) error {
			total += commitHeaderSize + len(s.compressed)
			return nil
		})
		if total > len(body) {
			t.Errorf("%d bytes of sections in a body of %d", total, len(body))
		}
	})
}
