package objstore

import (
	"context"
	"strings"
)

// prefixed puts a folder in front of all names of a bucket.
type prefixed struct {
	Bucket
	prefix string // ends with "/"
}

// withPrefix returns b below the folder prefix, which has no slash at its ends; ""
// is b itself.
func withPrefix(b Bucket, prefix string) Bucket {
	if prefix == "" {
		return b
	}
	return &prefixed{Bucket: b, prefix: prefix + "/"}
}

func (p *prefixed) Create(ctx context.Context, name string, data []byte) error {
	return p.Bucket.Create(ctx, p.prefix+name, data)
}

func (p *prefixed) Get(ctx context.Context, name string) ([]byte, error) {
	return p.Bucket.Get(ctx, p.prefix+name)
}

func (p *prefixed) GetRange(ctx context.Context, name string, off, length int64) ([]byte, error) {
	return p.Bucket.GetRange(ctx, p.prefix+name, off, length)
}

func (p *prefixed) Delete(ctx context.Context, name string) error {
	return p.Bucket.Delete(ctx, p.prefix+name)
}

func (p *prefixed) List(ctx context.Context, dir, after string, fn func(ObjectInfo) error) error {
	if after != "" {
		after = p.prefix + after
	}
	return p.Bucket.List(ctx, strings.TrimSuffix(p.prefix+dir, "/"), after, func(o ObjectInfo) error {
		o.Name = strings.TrimPrefix(o.Name, p.prefix)
		return fn(o)
	})
}

func (p *prefixed) Location() string {
	return strings.TrimSuffix(p.Bucket.Location(), "/") + "/" + strings.TrimSuffix(p.prefix, "/")
}
