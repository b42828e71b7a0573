package objstore

import (
	"context"
	"errors"
	"net/http"

	thanos "github.com/thanos-io/objstore"
	"github.com/thanos-io/objstore/exthttp"
)

// component names this program in the User-Agent that thanos providers send.
const component = "brooklet"

// remote is the part of a provider that thanos-io/objstore can do: reads and
// deletes. Create and List, which it cannot do the way they are needed, are added by
// the types that embed this one.
type remote struct {
	thanos.Bucket
	location string
	// classify puts an error of the provider's SDK into the words of this package.
	classify func(error) error
}

func (r *remote) Get(ctx context.Context, name string) ([]byte, error) {
	body, err := r.Bucket.Get(ctx, name)
	if err != nil {
		return nil, r.classify(err)
	}
	defer body.Close()
	data, err := readObject(body, -1)
	return data, r.classify(err)
}

func (r *remote) GetRange(ctx context.Context, name string, off, length int64) ([]byte, error) {
	body, err := r.Bucket.GetRange(ctx, name, off, length)
	if err != nil {
		return nil, r.classify(err)
	}
	defer body.Close()
	data, err := readRange(body, length)
	return data, r.classify(err)
}

func (r *remote) Delete(ctx context.Context, name string) error {
	err := r.classify(r.Bucket.Delete(ctx, name))
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func (r *remote) Location() string { return r.location }
func (r *remote) Local() bool      { return false }

// transport returns the HTTP transport that a thanos configuration describes.
func transport(c exthttp.HTTPConfig) (http.RoundTripper, error) {
	if c.Transport != nil {
		return c.Transport, nil
	}
	return exthttp.DefaultTransport(c)
}
