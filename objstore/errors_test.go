package objstore

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"cloud.google.com/go/storage"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/minio/minio-go/v7"
	"github.com/thanos-io/objstore/providers/s3"
	"google.golang.org/api/googleapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errorKinds = []error{
	ErrExists, ErrNotFound, ErrTruncated, ErrUnsupported, ErrDenied, ErrNoBucket, ErrThrottled, ErrRejected, ErrTimeout, ErrName,
}

// What a provider says becomes at most one kind of error, and stays in the chain. nil
// is a passing trouble without a kind.
func TestErrorsOfProviders(t *testing.T) {
	s3Answer := func(status int, code string) error { return minio.ErrorResponse{StatusCode: status, Code: code} }
	azAnswer := func(status int, code string) error {
		return &azcore.ResponseError{StatusCode: status, ErrorCode: code}
	}
	for _, c := range []struct {
		classify func(error) error
		err      error
		want     error
	}{
		{s3Error, s3Answer(404, "NoSuchKey"), ErrNotFound},
		{s3Error, s3Answer(404, "NoSuchBucket"), ErrNoBucket},
		{s3Error, s3Answer(403, "AccessDenied"), ErrDenied},
		{s3Error, s3Answer(403, "SignatureDoesNotMatch"), ErrDenied},
		{s3Error, s3Answer(403, "RequestTimeTooSkewed"), nil},
		{s3Error, s3Answer(400, "ExpiredToken"), nil},
		{s3Error, s3Answer(400, "RequestTimeout"), nil},
		{s3Error, s3Answer(400, "InvalidArgument"), ErrRejected},
		{s3Error, s3Answer(409, "ConditionalRequestConflict"), nil},
		{s3Error, s3Answer(416, "InvalidRange"), ErrTruncated},
		{s3Error, s3Answer(429, "TooManyRequests"), ErrThrottled},
		{s3Error, s3Answer(503, "SlowDown"), ErrThrottled},
		{s3Error, s3Answer(500, "InternalError"), nil},
		{s3Error, s3Answer(501, "NotImplemented"), ErrUnsupported},
		{s3Error, io.ErrUnexpectedEOF, nil},

		{azureError, azAnswer(404, "BlobNotFound"), ErrNotFound},
		{azureError, azAnswer(404, "ContainerNotFound"), ErrNoBucket},
		{azureError, azAnswer(403, "AuthorizationFailure"), ErrDenied},
		{azureError, azAnswer(416, "InvalidRange"), ErrTruncated},
		{azureError, azAnswer(500, "OperationTimedOut"), nil},
		{azureError, azAnswer(503, "ServerBusy"), ErrThrottled},
		{azureError, azAnswer(503, "OperationTimedOut"), nil},
		{azureError, azAnswer(409, "ContainerBeingDeleted"), nil},
		{azureError, &azidentity.AuthenticationFailedError{RawResponse: &http.Response{StatusCode: 401, Request: &http.Request{}}}, ErrDenied},
		{azureError, &azidentity.AuthenticationFailedError{}, nil},

		{gcsError, storage.ErrObjectNotExist, ErrNotFound},
		{gcsError, storage.ErrBucketNotExist, ErrNoBucket},
		{gcsError, &googleapi.Error{Code: 403}, ErrDenied},
		{gcsError, &googleapi.Error{Code: 416}, ErrTruncated},
		{gcsError, &googleapi.Error{Code: 429}, ErrThrottled},
		{gcsError, &googleapi.Error{Code: 500}, nil},
		{gcsError, status.Error(codes.PermissionDenied, ""), ErrDenied},
		{gcsError, status.Error(codes.ResourceExhausted, ""), ErrThrottled},
		{gcsError, status.Error(codes.OutOfRange, ""), ErrTruncated},
		{gcsError, status.Error(codes.Unavailable, ""), nil},
		{gcsError, status.Error(codes.InvalidArgument, ""), ErrRejected},

		{fileError, &os.PathError{Err: syscall.EACCES}, ErrDenied},
		{fileError, &os.PathError{Err: syscall.EROFS}, ErrDenied},
		{fileError, &os.PathError{Err: syscall.ENAMETOOLONG}, ErrName},
		{fileError, &os.PathError{Err: syscall.ENOSPC}, nil},
	} {
		got := c.classify(c.err)
		for _, kind := range errorKinds {
			if errors.Is(got, kind) != (kind == c.want) {
				t.Errorf("%v (%T) became %v, want %v", c.err, c.err, got, c.want)
			}
		}
		if c.want == nil && !transient(got) {
			t.Errorf("%v (%T) is not tried again", c.err, c.err)
		}
	}
	for _, classify := range []func(error) error{s3Error, azureError, gcsError, fileError} {
		if err := classify(nil); err != nil {
			t.Errorf("no error became %v", err)
		}
	}
}

func TestS3PutOptions(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, make([]byte, 32), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, sse := range []s3.SSEConfig{
		{Type: s3.SSES3}, {Type: s3.SSEKMS, KMSKeyID: "id"}, {Type: s3.SSEC, EncryptionKey: key},
	} {
		c := s3.DefaultConfig
		c.SSEConfig = sse
		c.PutUserMetadata = map[string]string{"x-amz-storage-class": "STANDARD_IA", "team": "a"}
		put, err := s3PutOptions(c)
		if err != nil {
			t.Fatal(err)
		}
		if string(put.ServerSideEncryption.Type()) == "" || put.StorageClass != "STANDARD_IA" ||
			len(put.UserMetadata) != 1 || put.UserMetadata["team"] != "a" || !put.DisableMultipart {
			t.Errorf("%s: %+v", sse.Type, put)
		}
	}
	if _, err := s3PutOptions(s3.Config{SSEConfig: s3.SSEConfig{Type: "ROT13"}}); err == nil {
		t.Error("an unknown encryption was accepted, and data would be stored without")
	}
}
