package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"

	"github.com/go-kit/log"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/encrypt"
	"github.com/thanos-io/objstore/providers/s3"
)

// s3Bucket adds create-if-absent and list-after to the S3 bucket of thanos, with a
// client of its own made from the same configuration.
type s3Bucket struct {
	remote
	client *minio.Client
	config s3.Config
	put    minio.PutObjectOptions
}

func openS3(c s3.Config) (*s3Bucket, error) {
	if c.SignatureV2 {
		return nil, fmt.Errorf("%w: signature_version2 of the S3 configuration; remove it", ErrUnsupported)
	}
	tr, err := transport(c.HTTPConfig)
	if err != nil {
		return nil, err
	}
	c.HTTPConfig.Transport = tr // one connection pool for both clients
	// Retries are the guard's business. Without a region the client may need a second
	// request to learn it.
	c.MaxRetries = 1
	if c.Region == "" {
		c.MaxRetries = 2
	}
	config := c
	config.PutUserMetadata = maps.Clone(c.PutUserMetadata) // thanos takes the storage class out
	bucket, err := s3.NewBucketWithConfig(log.NewNopLogger(), config, component, nil)
	if err != nil {
		return nil, err
	}
	client, err := newS3Client(c)
	if err != nil {
		return nil, err
	}
	put, err := s3PutOptions(c)
	if err != nil {
		return nil, err
	}
	return &s3Bucket{
		remote: remote{Bucket: bucket, location: "s3://" + c.Bucket, classify: s3Error},
		client: client,
		config: c,
		put:    put,
	}, nil
}

func newS3Client(c s3.Config) (*minio.Client, error) {
	client, err := minio.New(c.Endpoint, &minio.Options{
		Creds:        credentials.NewChainCredentials(s3Credentials(c)),
		Secure:       !c.Insecure,
		Region:       c.Region,
		Transport:    c.HTTPConfig.Transport,
		BucketLookup: c.BucketLookupType.MinioType(),
		MaxRetries:   c.MaxRetries,
	})
	if err != nil {
		return nil, err
	}
	if c.DisableDualstack {
		client.SetS3EnableDualstack(false)
	}
	return client, nil
}

// s3Credentials is where thanos looks for credentials, in its order.
func s3Credentials(c s3.Config) []credentials.Provider {
	switch {
	case c.AWSSDKAuth:
		return []credentials.Provider{&s3.AWSSDKAuth{Region: c.Region}}
	case c.AccessKey != "":
		return []credentials.Provider{&credentials.Static{Value: credentials.Value{
			AccessKeyID:     c.AccessKey,
			SecretAccessKey: c.SecretKey,
			SessionToken:    c.SessionToken,
			SignerType:      credentials.SignatureV4,
		}}}
	}
	return []credentials.Provider{
		&credentials.EnvAWS{},
		&credentials.FileAWSCredentials{},
		&credentials.IAM{Client: &http.Client{Transport: http.DefaultTransport}, Endpoint: c.STSEndpoint},
	}
}

// s3PutOptions makes every upload one conditional PUT: with multipart upload the
// condition would be checked at the end only, and parts could be left behind.
func s3PutOptions(c s3.Config) (minio.PutObjectOptions, error) {
	sse, err := s3Encryption(c.SSEConfig)
	if err != nil {
		return minio.PutObjectOptions{}, fmt.Errorf("sse_config of the S3 configuration: %w", err)
	}
	put := minio.PutObjectOptions{
		ContentType:          "application/octet-stream",
		DisableMultipart:     true,
		SendContentMd5:       c.SendContentMd5,
		ServerSideEncryption: sse,
		UserMetadata:         map[string]string{},
	}
	for k, v := range c.PutUserMetadata {
		if strings.EqualFold(k, "X-Amz-Storage-Class") {
			put.StorageClass = v
			continue
		}
		put.UserMetadata[k] = v
	}
	return put, nil
}

func s3Encryption(c s3.SSEConfig) (encrypt.ServerSide, error) {
	switch c.Type {
	case "":
		return nil, nil
	case s3.SSES3:
		return encrypt.NewSSE(), nil
	case s3.SSEKMS:
		context := c.KMSEncryptionContext
		if context == nil {
			context = map[string]string{} // nil would be sent as "null"
		}
		return encrypt.NewSSEKMS(c.KMSKeyID, context)
	case s3.SSEC:
		key, err := os.ReadFile(c.EncryptionKey)
		if err != nil {
			return nil, err
		}
		return encrypt.NewSSEC(key)
	}
	return nil, fmt.Errorf("type %q is unknown, use SSE-S3, SSE-KMS or SSE-C", c.Type)
}

func (b *s3Bucket) Create(ctx context.Context, name string, data []byte) error {
	put := b.put
	put.UserMetadata = maps.Clone(b.put.UserMetadata) // the client may write to it
	put.SetMatchETagExcept("*")
	_, err := b.client.PutObject(ctx, b.config.Bucket, name, bytes.NewReader(data), int64(len(data)), put)
	var answer minio.ErrorResponse
	if errors.As(err, &answer) && answer.StatusCode == http.StatusPreconditionFailed {
		return fmt.Errorf("%w: %w", ErrExists, err)
	}
	// 409 ConditionalRequestConflict, "another request on the same key got in the
	// way, try again", is left to the guard.
	return s3Error(err)
}

// Get knows that thanos, reading ahead to see whether there is an object, takes the end
// of an empty one for an error. A lost connection shows as another error.
func (b *s3Bucket) Get(ctx context.Context, name string) ([]byte, error) {
	data, err := b.remote.Get(ctx, name)
	if err == io.EOF {
		return []byte{}, nil
	}
	return data, err
}

func (b *s3Bucket) List(ctx context.Context, dir, after string, fn func(ObjectInfo) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	objects := b.client.ListObjectsIter(ctx, b.config.Bucket, minio.ListObjectsOptions{
		Prefix:     dirPrefix(dir),
		StartAfter: after,
		UseV1:      b.config.ListObjectsVersion == "v1",
	})
	for o := range objects {
		if o.Err != nil {
			return s3Error(o.Err)
		}
		// Folders come as names with a slash at the end. Some stores ignore the start.
		if o.Key <= after || !inDir(o.Key, dir) {
			continue
		}
		if err := fn(ObjectInfo{Name: o.Key, Size: o.Size}); err != nil {
			return err
		}
	}
	return ctx.Err() // the iterator just ends with it
}

func s3Error(err error) error {
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) {
		return err
	}
	switch answer.Code {
	case "NoSuchBucket":
		return fmt.Errorf("%w: %w", ErrNoBucket, err)
	case "SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "ServiceUnavailable":
		return fmt.Errorf("%w: %w", ErrThrottled, err)
	case "RequestTimeout", "RequestTimeTooSkewed", "ExpiredToken", "ExpiredTokenException":
		return err // 400 and 403, but a new attempt is signed anew
	}
	return statusError(answer.StatusCode, err)
}
