package kafkaproto

import (
	"fmt"
	"testing"
)

func benchRecords() []Record {
	records := make([]Record, 100)
	for i := range records {
		value := make([]byte, 1000)
		for j := range value {
			value[j] = byte(i * j >> 3)
		}
		records[i] = Record{Timestamp: int64(i), Key: fmt.Appendf(nil, "key-%d", i), Value: value}
	}
	return records
}

func BenchmarkValidateBatch(b *testing.B) {
	batch := build(b, BatchOptions{}, benchRecords()...)
	b.SetBytes(int64(len(batch)))
	b.ReportAllocs()
	for b.Loop() {
		if err := ValidateBatch(batch, BatchLimits{MaxBytes: 1 << 20}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeProduce(b *testing.B) {
	batch := build(b, BatchOptions{}, benchRecords()...)
	for _, partitions := range []int{1, 100} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			frame := frameOf(produceRequest(9, 1, partitions, batch), 9, 1)[4:]
			b.SetBytes(int64(len(frame)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := decodeAll(frame); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkIterate(b *testing.B) {
	for _, codec := range allCodecs {
		batch := build(b, BatchOptions{Codec: codec}, benchRecords()...)
		b.Run(codec.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				it := NewRecordIterator(batch, IterLimits{})
				for it.Next() {
				}
				it.Close()
			}
		})
	}
}

func BenchmarkFindTimestamp(b *testing.B) {
	for _, codec := range allCodecs {
		batch := build(b, BatchOptions{Codec: codec}, benchRecords()...)
		b.Run(codec.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, ok, err := FindTimestamp(batch, 50, 0); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}

func BenchmarkBuild(b *testing.B) {
	records := benchRecords()
	for _, codec := range allCodecs {
		b.Run(codec.String(), func(b *testing.B) {
			b.ReportAllocs()
			builder := NewBuilder(BatchOptions{})
			for b.Loop() {
				builder.Reset(BatchOptions{Codec: codec})
				for _, r := range records {
					if err := builder.Append(r); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := builder.Build(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
