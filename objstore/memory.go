package objstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Memory is a bucket in memory, for tests and for trying things out. It makes no
// retries, and its errors are exact: any error but ErrExists from Create means that
// nothing was created. Make one with NewMemory.
type Memory struct {
	mu struct {
		sync.RWMutex
		// objects are never changed in place, so readers may copy outside the lock.
		objects map[string][]byte
	}
}

// NewMemory returns an empty bucket.
func NewMemory() *Memory {
	m := &Memory{}
	m.mu.objects = make(map[string][]byte)
	return m
}

// Create implements Bucket.
func (m *Memory) Create(ctx context.Context, name string, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := CheckName(name); err != nil {
		return err
	}
	data = append([]byte{}, data...)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.mu.objects[name]; ok {
		return fmt.Errorf("%w: %s", ErrExists, name)
	}
	m.mu.objects[name] = data
	return nil
}

func (m *Memory) object(ctx context.Context, name string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	data, ok := m.mu.objects[name]
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	return data, nil
}

// Get implements Bucket.
func (m *Memory) Get(ctx context.Context, name string) ([]byte, error) {
	data, err := m.object(ctx, name)
	if err != nil {
		return nil, err
	}
	return append([]byte{}, data...), nil
}

// GetRange implements Bucket.
func (m *Memory) GetRange(ctx context.Context, name string, off, length int64) ([]byte, error) {
	data, err := m.object(ctx, name)
	if err != nil {
		return nil, err
	}
	size := int64(len(data))
	if off < 0 || length < 0 {
		return nil, fmt.Errorf("%w: %d bytes from %d", ErrName, length, off)
	}
	if off > size || length > size-off {
		return nil, shortObject(name, off, length, size)
	}
	return append([]byte{}, data[off:off+length]...), nil
}

func shortObject(name string, off, length, size int64) error {
	return fmt.Errorf("%w: %s has %d bytes, asked for %d from %d", ErrTruncated, name, size, length, off)
}

// List implements Bucket.
func (m *Memory) List(ctx context.Context, dir, after string, fn func(ObjectInfo) error) error {
	for _, o := range m.infos(dir, after) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(o); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (m *Memory) infos(dir, after string) []ObjectInfo {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var infos []ObjectInfo
	for name, data := range m.mu.objects {
		if name > after && inDir(name, dir) {
			infos = append(infos, ObjectInfo{Name: name, Size: int64(len(data))})
		}
	}
	slices.SortFunc(infos, func(a, b ObjectInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos
}

// Delete implements Bucket.
func (m *Memory) Delete(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.objects, name)
	return nil
}

// Location implements Bucket.
func (m *Memory) Location() string { return "mem://" }

// Local implements Bucket.
func (m *Memory) Local() bool { return true }

// Close implements Bucket. The objects stay, so a test can open the bucket again.
func (m *Memory) Close() error { return nil }

// Names returns the names of all objects in ascending order.
func (m *Memory) Names() []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	names := make([]string, 0, len(m.mu.objects))
	for name := range m.mu.objects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Corrupt inverts the byte at off of an object, as a failing disk would.
func (m *Memory) Corrupt(name string, off int64) error {
	return m.replace(name, off, func(data []byte) []byte {
		data = bytes.Clone(data)
		data[off] ^= 0xff
		return data
	})
}

// Truncate cuts an object off after size bytes; size must be less than its length.
func (m *Memory) Truncate(name string, size int64) error {
	return m.replace(name, size, func(data []byte) []byte { return data[:size:size] })
}

func (m *Memory) replace(name string, at int64, change func([]byte) []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.mu.objects[name]
	if !ok {
		return fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	if at < 0 || at >= int64(len(data)) {
		return fmt.Errorf("%w: byte %d of %d", ErrName, at, len(data))
	}
	m.mu.objects[name] = change(data)
	return nil
}
