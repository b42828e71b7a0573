package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/go-kit/log"
	"github.com/prometheus/common/model"
	"github.com/thanos-io/objstore/providers/azure"
)

// azureBucket adds create-if-absent and a listing with sizes to the Azure bucket of
// thanos, with a client of its own made from the same configuration.
type azureBucket struct {
	remote
	client *container.Client
}

// openAzure does no request; the container must exist.
func openAzure(c azure.Config) (*azureBucket, error) {
	if c.StorageCreateContainer {
		return nil, fmt.Errorf("%w: storage_create_container of the Azure configuration; remove it and create the container %s",
			ErrUnsupported, c.ContainerName)
	}
	tr, err := transport(c.HTTPConfig)
	if err != nil {
		return nil, err
	}
	c.HTTPConfig.Transport = tr // one connection pool for both clients
	// Retries are the guard's business; thanos and the SDK make at least one.
	c.PipelineConfig.MaxTries = 1
	c.PipelineConfig.RetryDelay = model.Duration(100 * time.Millisecond)
	c.ReaderConfig.MaxRetryRequests = 0
	bucket, err := azure.NewBucketWithConfig(log.NewNopLogger(), c, component, nil)
	if err != nil {
		return nil, err
	}
	client, err := newAzureClient(c)
	if err != nil {
		return nil, err
	}
	return &azureBucket{
		remote: remote{Bucket: bucket, location: "azblob://" + c.ContainerName, classify: azureError},
		client: client,
	}, nil
}

// newAzureClient looks for credentials where thanos does, in its order.
func newAzureClient(c azure.Config) (*container.Client, error) {
	opts := &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Retry:     policy.RetryOptions{MaxRetries: -1},
		Telemetry: policy.TelemetryOptions{ApplicationID: component},
		Transport: &http.Client{Transport: c.HTTPConfig.Transport},
	}}
	if c.StorageConnectionString != "" {
		return container.NewClientFromConnectionString(c.StorageConnectionString, c.ContainerName, opts)
	}
	url := fmt.Sprintf("https://%s.%s/%s", c.StorageAccountName, c.Endpoint, c.ContainerName)
	if c.StorageAccountKey != "" {
		key, err := container.NewSharedKeyCredential(c.StorageAccountName, c.StorageAccountKey)
		if err != nil {
			return nil, err
		}
		return container.NewClientWithSharedKeyCredential(url, key, opts)
	}
	token, err := azureToken(c)
	if err != nil {
		return nil, err
	}
	return container.NewClient(url, token, opts)
}

func azureToken(c azure.Config) (azcore.TokenCredential, error) {
	switch {
	case c.ClientSecret != "" && c.AzTenantID != "" && c.ClientID != "":
		return azidentity.NewClientSecretCredential(c.AzTenantID, c.ClientID, c.ClientSecret, nil)
	case c.UserAssignedID != "":
		return azidentity.NewManagedIdentityCredential(&azidentity.ManagedIdentityCredentialOptions{
			ID: azidentity.ClientID(c.UserAssignedID),
		})
	}
	return azidentity.NewDefaultAzureCredential(nil)
}

func (b *azureBucket) Create(ctx context.Context, name string, data []byte) error {
	body := streaming.NopCloser(bytes.NewReader(data))
	_, err := b.client.NewBlockBlobClient(name).Upload(ctx, body, &blockblob.UploadOptions{
		AccessConditions: &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{
			IfNoneMatch: to.Ptr(azcore.ETagAny),
		}},
	})
	// Azure answers 409 BlobAlreadyExists; 412 is what the protocol says.
	if bloberror.HasCode(err, bloberror.BlobAlreadyExists, bloberror.ConditionNotMet) {
		return fmt.Errorf("%w: %w", ErrExists, err)
	}
	return azureError(err)
}

func (b *azureBucket) List(ctx context.Context, dir, after string, fn func(ObjectInfo) error) error {
	// StartFrom is documented for "one entity level" of a listing by folder and is
	// unknown to older services; skipping here is always right.
	opts := &container.ListBlobsHierarchyOptions{Prefix: to.Ptr(dirPrefix(dir))}
	pages := b.client.NewListBlobsHierarchyPager("/", opts)
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return azureError(err)
		}
		if page.Segment == nil {
			continue
		}
		for _, item := range page.Segment.BlobItems {
			if item.Name == nil || *item.Name <= after || !inDir(*item.Name, dir) {
				continue
			}
			if err := fn(ObjectInfo{Name: *item.Name, Size: azureSize(item)}); err != nil {
				return err
			}
		}
	}
	return nil
}

func azureSize(item *container.BlobItem) int64 {
	if item.Properties == nil || item.Properties.ContentLength == nil {
		return 0
	}
	return *item.Properties.ContentLength
}

func azureError(err error) error {
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) {
		var auth *azidentity.AuthenticationFailedError
		if errors.As(err, &auth) && auth.RawResponse != nil {
			return statusError(auth.RawResponse.StatusCode, err)
		}
		return err
	}
	switch bloberror.Code(answer.ErrorCode) {
	case bloberror.ContainerNotFound, bloberror.ContainerDisabled:
		return fmt.Errorf("%w: %w", ErrNoBucket, err)
	case bloberror.OperationTimedOut:
		return err
	}
	return statusError(answer.StatusCode, err)
}
