package kafkaproto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec is how the records of a batch are compressed: bits 0 to 2 of its attributes.
type Codec int8

// The codecs of the protocol; 5 to 7 do not exist. Zstd is KIP-110.
const (
	CodecNone Codec = iota
	CodecGzip
	CodecSnappy
	CodecLZ4
	CodecZstd
)

// String returns the name that compression.type uses.
func (c Codec) String() string {
	switch c {
	case CodecNone:
		return "none"
	case CodecGzip:
		return "gzip"
	case CodecSnappy:
		return "snappy"
	case CodecLZ4:
		return "lz4"
	case CodecZstd:
		return "zstd"
	}
	return fmt.Sprintf("codec(%d)", int8(c))
}

const (
	// maxZstdWindow bounds what one zstd decoder allocates for history, which it
	// does as soon as a frame asks for it. 32 MiB covers all levels up to 20 as
	// streams and every level for batches of at most 32 MiB.
	maxZstdWindow = 32 << 20
	// poolMaxExpanded is the output from which on a decoder is left to the garbage
	// collector, since its buffers may have grown with it.
	poolMaxExpanded = 8 << 20
)

// decompressor is a pooled streaming decoder.
type decompressor interface {
	io.Reader
	// reset starts over with src. No single allocation for output exceeds maxOutput.
	reset(src []byte, maxOutput int64) error
}

var decompressors = [...]sync.Pool{
	CodecGzip:   {New: func() any { return new(gzipDecompressor) }},
	CodecSnappy: {New: func() any { return new(snappyDecompressor) }},
	CodecLZ4:    {New: func() any { return &lz4Decompressor{zr: lz4.NewReader(nil)} }},
	CodecZstd:   {New: func() any { return newZstdDecompressor() }},
}

type gzipDecompressor struct {
	src bytes.Reader
	zr  gzip.Reader
}

func (d *gzipDecompressor) reset(src []byte, _ int64) error {
	d.src.Reset(src)
	return d.zr.Reset(&d.src)
}

func (d *gzipDecompressor) Read(p []byte) (int, error) { return d.zr.Read(p) }

type lz4Decompressor struct {
	src bytes.Reader
	zr  *lz4.Reader
}

func (d *lz4Decompressor) reset(src []byte, _ int64) error {
	d.src.Reset(src)
	d.zr.Reset(&d.src)
	return nil
}

func (d *lz4Decompressor) Read(p []byte) (int, error) { return d.zr.Read(p) }

type zstdDecompressor struct {
	src bytes.Reader
	zr  *zstd.Decoder
}

func newZstdDecompressor() *zstdDecompressor {
	// With a concurrency of one the decoder has no goroutines, so dropping it
	// without Close leaks nothing.
	zr, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxZstdWindow),
		zstd.WithDecoderMaxMemory(maxZstdWindow))
	if err != nil {
		panic(err) // the options are constants
	}
	return &zstdDecompressor{zr: zr}
}

func (d *zstdDecompressor) reset(src []byte, _ int64) error {
	d.src.Reset(src)
	return d.zr.Reset(&d.src)
}

func (d *zstdDecompressor) Read(p []byte) (int, error) { return d.zr.Read(p) }

// snappyDecompressor reads both shapes of snappy that producers send: one raw block,
// and the framing of the Java library (xerial):
//
//	0  8  0x82 "SNAPPY" 0x00
//	8  4  version
//	12 4  oldest compatible version
//	16    blocks, each a 4 byte big endian length and a raw block
type snappyDecompressor struct {
	src       []byte
	framed    bool
	maxOutput int64
	block     []byte // decoded block
	off       int    // bytes of block already read
}

const xerialHeaderLen = 16

var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

var errSnappy = errors.New("kafkaproto: damaged snappy data")

func (d *snappyDecompressor) reset(src []byte, maxOutput int64) error {
	d.src, d.maxOutput = src, maxOutput
	d.block, d.off = d.block[:0], 0
	d.framed = bytes.HasPrefix(src, xerialMagic)
	return nil
}

func (d *snappyDecompressor) Read(p []byte) (int, error) {
	for d.off == len(d.block) {
		if err := d.nextBlock(); err != nil {
			return 0, err
		}
	}
	n := copy(p, d.block[d.off:])
	d.off += n
	return n, nil
}

func (d *snappyDecompressor) nextBlock() error {
	if len(d.src) == 0 {
		return io.EOF
	}
	raw := d.src
	if d.framed {
		if bytes.HasPrefix(d.src, xerialMagic) { // streams may be joined
			if len(d.src) < xerialHeaderLen {
				return errSnappy
			}
			d.src = d.src[xerialHeaderLen:]
			return nil
		}
		if len(d.src) < 4 {
			return errSnappy
		}
		n := binary.BigEndian.Uint32(d.src)
		if d.src = d.src[4:]; uint64(n) > uint64(len(d.src)) {
			return errSnappy
		}
		raw = d.src[:n]
	}
	d.src = d.src[len(raw):]
	return d.decode(raw)
}

func (d *snappyDecompressor) decode(raw []byte) error {
	n, err := snappy.DecodedLen(raw)
	if err != nil {
		return errSnappy
	}
	// A block says its size up front and the decoder allocates that much. Three
	// bytes of snappy make at most 64, so more than 22 to 1 is a lie.
	if int64(n) > 22*int64(len(raw))+64 {
		return fmt.Errorf("%w: a block of %d bytes claims to hold %d", errSnappy, len(raw), n)
	}
	if int64(n) > d.maxOutput {
		return errExpandLimit
	}
	d.block, err = snappy.Decode(d.block[:cap(d.block)], raw)
	d.off = 0
	if err != nil {
		d.block = d.block[:0]
		return fmt.Errorf("%w: %w", errSnappy, err)
	}
	return nil
}

var (
	gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}
	lz4Writers  = sync.Pool{New: func() any {
		w := lz4.NewWriter(nil)
		// Small blocks keep every reader's buffers small, ours included.
		if err := w.Apply(lz4.BlockSizeOption(lz4.Block64Kb)); err != nil {
			panic(err) // the option is a constant
		}
		return w
	}}
	zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic(err) // the options are constants
		}
		return w
	})
)

// compress appends src, compressed with c, to dst.
func compress(dst []byte, c Codec, src []byte) ([]byte, error) {
	switch c {
	case CodecNone:
		return append(dst, src...), nil
	case CodecGzip:
		w := gzipWriters.Get().(*gzip.Writer)
		defer gzipWriters.Put(w)
		return compressTo(dst, w, src)
	case CodecSnappy:
		return append(dst, snappy.Encode(nil, src)...), nil
	case CodecLZ4:
		w := lz4Writers.Get().(*lz4.Writer)
		defer lz4Writers.Put(w)
		return compressTo(dst, w, src)
	case CodecZstd:
		return zstdEncoder().EncodeAll(src, dst), nil
	}
	return nil, fmt.Errorf("kafkaproto: cannot compress with %v", c)
}

type compressWriter interface {
	io.WriteCloser
	Reset(io.Writer)
}

func compressTo(dst []byte, w compressWriter, src []byte) ([]byte, error) {
	buf := bytes.NewBuffer(dst)
	w.Reset(buf)
	if _, err := w.Write(src); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
