package kfake

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// maxFrame is far above what tests send.
const maxFrame = 256 << 20

// readFrame reads a request with its size before it.
func readFrame(in *bufio.Reader) ([]byte, error) {
	head, err := in.Peek(4)
	if err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxFrame {
		return nil, fmt.Errorf("kfake: a request of %d bytes", size)
	}
	frame := make([]byte, 4+size)
	_, err = io.ReadFull(in, frame)
	return frame, err
}

// show passes a request to those who observe its key. One that cannot be read is not shown: the broker will say so.
func (r *relay) show(b []byte) {
	const head = 10 // key, version, correlation id, length of the client id
	if len(b) < head {
		return
	}
	key := int16(binary.BigEndian.Uint16(b))
	r.mu.Lock()
	observers := r.observers[key]
	r.mu.Unlock()
	if len(observers) == 0 {
		return
	}
	request := kmsg.RequestForKey(key)
	request.SetVersion(int16(binary.BigEndian.Uint16(b[2:])))
	clientID := int16(binary.BigEndian.Uint16(b[8:]))
	b = b[head:]
	if int(clientID) > len(b) {
		return
	}
	b = b[max(clientID, 0):]
	if request.IsFlexible() {
		if len(b) == 0 || b[0] != 0 {
			return // tagged fields in the header, which no client of these tests sends
		}
		b = b[1:]
	}
	if request.ReadFrom(b) != nil {
		return
	}
	for _, fn := range observers {
		fn(request)
	}
}

// sealBatch fills in the length and the checksum of a record batch.
func sealBatch(b []byte) []byte {
	const length, checksum, attributes = 8, 17, 21 // where these are
	binary.BigEndian.PutUint32(b[length:], uint32(len(b)-length-4))
	binary.BigEndian.PutUint32(b[checksum:], crc32.Checksum(b[attributes:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}
