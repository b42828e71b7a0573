package objstore

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"

	"cloud.google.com/go/storage"
	"github.com/go-kit/log"
	"github.com/thanos-io/objstore/providers/gcs"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// gcsBucket adds create-if-absent and list-after to the GCS bucket of thanos, through
// the handle that it gives out.
type gcsBucket struct {
	remote
	handle *storage.BucketHandle
}

func openGCS(ctx context.Context, c gcs.Config) (*gcsBucket, error) {
	tr, err := transport(c.HTTPConfig)
	if err != nil {
		return nil, err
	}
	c.HTTPConfig.Transport = tr
	// thanos takes this as the limit of whole requests as well, transfer of the body
	// included. Idle connections are the transport's business already.
	c.HTTPConfig.IdleConnTimeout = 0
	c.MaxRetries = 1 // retries are the guard's business
	bucket, err := gcs.NewBucketWithConfig(ctx, log.NewNopLogger(), c, component, nil)
	if err != nil {
		return nil, err
	}
	return &gcsBucket{
		remote: remote{Bucket: bucket, location: "gs://" + c.Bucket, classify: gcsError},
		handle: bucket.Handle(),
	}, nil
}

func (b *gcsBucket) Create(ctx context.Context, name string, data []byte) error {
	// Ending the context is the way to abandon a writer: Close would publish what was
	// written so far.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := b.handle.Object(name).If(storage.Conditions{DoesNotExist: true}).NewWriter(ctx)
	w.ChunkSize = 0 // one request, not a resumable session
	w.ContentType = "application/octet-stream"
	w.CRC32C = crc32.Checksum(data, castagnoli)
	w.SendCRC32C = true
	_, err := w.Write(data)
	if err == nil {
		err = w.Close()
	}
	switch gcsStatus(err) {
	case http.StatusPreconditionFailed:
		return fmt.Errorf("%w: %w", ErrExists, err)
	case http.StatusNotFound: // nothing else can be missing
		return fmt.Errorf("%w: %w", ErrNoBucket, err)
	}
	return gcsError(err)
}

func (b *gcsBucket) List(ctx context.Context, dir, after string, fn func(ObjectInfo) error) error {
	query := &storage.Query{Prefix: dirPrefix(dir), Delimiter: "/", StartOffset: after}
	if err := query.SetAttrSelection([]string{"Name", "Size"}); err != nil {
		return err
	}
	objects := b.handle.Objects(ctx, query)
	for {
		o, err := objects.Next()
		if err == iterator.Done {
			return nil
		}
		if gcsStatus(err) == http.StatusNotFound {
			return fmt.Errorf("%w: %w", ErrNoBucket, err)
		}
		if err != nil {
			return gcsError(err)
		}
		// Folders have a Prefix and no Name. The start is inclusive.
		if o.Name <= after || !inDir(o.Name, dir) {
			continue
		}
		if err := fn(ObjectInfo{Name: o.Name, Size: o.Size}); err != nil {
			return err
		}
	}
}

// gcsStatus is the HTTP status in err, or what a gRPC code corresponds to, or 0.
func gcsStatus(err error) int {
	var answer *googleapi.Error
	if errors.As(err, &answer) {
		return answer.Code
	}
	switch s, _ := status.FromError(err); s.Code() {
	case codes.FailedPrecondition, codes.AlreadyExists:
		return http.StatusPreconditionFailed
	case codes.NotFound:
		return http.StatusNotFound
	case codes.PermissionDenied, codes.Unauthenticated:
		return http.StatusForbidden
	case codes.OutOfRange:
		return http.StatusRequestedRangeNotSatisfiable
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.Unimplemented:
		return http.StatusNotImplemented
	}
	return 0
}

func gcsError(err error) error {
	switch {
	case errors.Is(err, storage.ErrBucketNotExist):
		return fmt.Errorf("%w: %w", ErrNoBucket, err)
	case errors.Is(err, storage.ErrObjectNotExist):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return statusError(gcsStatus(err), err)
}
