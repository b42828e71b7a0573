package objstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/thanos-io/objstore/providers/azure"
	"github.com/thanos-io/objstore/providers/filesystem"
	"github.com/thanos-io/objstore/providers/gcs"
	"github.com/thanos-io/objstore/providers/s3"
	"gopkg.in/yaml.v2"
)

// source is a bucket address that was understood: one configuration in the terms of
// thanos, and a prefix without slashes at its ends ("" for none).
type source struct {
	config any // s3.Config, gcs.Config, azure.Config, filesystem.Config or memoryConfig
	prefix string
}

type memoryConfig struct{}

const schemes = "file:///folder, s3://bucket/prefix, gs://bucket/prefix, azblob://container/prefix?account=name, mem://, or the path of a YAML file"

// parseSource understands what Options.URL documents.
func parseSource(address string) (source, error) {
	if address == "" {
		return source{}, fmt.Errorf("no bucket given: set --bucket to %s", schemes)
	}
	scheme, _, isURL := strings.Cut(address, "://")
	if !isURL {
		return parseFile(address)
	}
	u, err := url.Parse(address)
	if err != nil {
		// The error of url.Parse would repeat the address, secrets included.
		return source{}, fmt.Errorf("bucket address %s://... is not a URL: write %s", scheme, schemes)
	}
	src, err := parseURL(u)
	if err != nil {
		return source{}, fmt.Errorf("bucket address %s://%s%s: %w", u.Scheme, u.Host, u.Path, err)
	}
	return src, nil
}

func parseURL(u *url.URL) (source, error) {
	if u.User != nil {
		return source{}, errors.New("no user or password before @: credentials come from the environment or from a YAML file")
	}
	if u.Fragment != "" {
		return source{}, errors.New(`no "#...": write %23 if the prefix contains #`)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return source{}, errors.New("the part after ? must be of the form name=value&name=value")
	}
	params := &params{values: query}
	var src source
	switch u.Scheme {
	case "file":
		src, err = fileSource(u)
	case "mem":
		src = source{config: memoryConfig{}}
	case "s3":
		src, err = s3Source(u, params)
	case "gs":
		src, err = gcsSource(u)
	case "azblob":
		src, err = azureSource(u, params)
	default:
		err = fmt.Errorf("unknown scheme %q: write %s", u.Scheme, schemes)
	}
	if err = errors.Join(err, params.rest()); err != nil {
		return source{}, err
	}
	return src, nil
}

// params are query parameters; what nobody took is an error.
type params struct {
	values url.Values
	known  []string
	errs   []error
}

func (p *params) take(name string) string {
	p.known = append(p.known, name)
	v := p.values[name]
	delete(p.values, name)
	if len(v) > 1 {
		p.errs = append(p.errs, fmt.Errorf("parameter %s is given %d times", name, len(v)))
	}
	return strings.Join(v[:min(1, len(v))], "")
}

func (p *params) takeBool(name string) bool {
	s := p.take(name)
	if s == "" {
		return false
	}
	v, err := strconv.ParseBool(s)
	if err != nil {
		p.errs = append(p.errs, fmt.Errorf("parameter %s is %q: write true or false", name, s))
	}
	return v
}

func (p *params) rest() error {
	allowed := "there are none here"
	if len(p.known) > 0 {
		allowed = "known here: " + strings.Join(p.known, ", ")
	}
	for _, name := range slices.Sorted(maps.Keys(p.values)) {
		p.errs = append(p.errs, fmt.Errorf("unknown parameter %q (%s); a YAML file can say more", name, allowed))
	}
	return errors.Join(p.errs...)
}

func fileSource(u *url.URL) (source, error) {
	if u.Host != "" || !strings.HasPrefix(u.Path, "/") {
		return source{}, fmt.Errorf("the folder must be absolute, with three slashes: write file:///%s", strings.Trim(u.Host+u.Path, "/"))
	}
	return source{config: filesystem.Config{Directory: u.Path}}, nil
}

// bucketAndPrefix splits a URL into its host and its path.
func bucketAndPrefix(u *url.URL, what string) (string, string, error) {
	if u.Host == "" {
		return "", "", fmt.Errorf("no %s: write %s://%s/prefix", what, u.Scheme, what)
	}
	if u.Port() != "" || strings.HasSuffix(u.Host, ":") {
		return "", "", fmt.Errorf("%q is not a %s name; the address of the service goes into the parameter endpoint", u.Host, what)
	}
	prefix := strings.Trim(u.Path, "/")
	return u.Host, prefix, checkPrefix(prefix)
}

func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	if err := CheckName(prefix); err != nil {
		return fmt.Errorf("prefix: %w", err)
	}
	return nil
}

func s3Source(u *url.URL, p *params) (source, error) {
	bucket, prefix, err := bucketAndPrefix(u, "bucket")
	c := s3.DefaultConfig
	c.Bucket = bucket
	c.Region = cmp.Or(p.take("region"), os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	c.Endpoint = cmp.Or(p.take("endpoint"), "s3.amazonaws.com")
	c.Insecure = p.takeBool("insecure")
	if rest, ok := strings.CutPrefix(c.Endpoint, "http://"); ok {
		c.Endpoint, c.Insecure = rest, true
	}
	c.Endpoint = strings.TrimSuffix(strings.TrimPrefix(c.Endpoint, "https://"), "/")
	if p.takeBool("path_style") {
		c.BucketLookupType = s3.PathLookup
	}
	c.AccessKey = p.take("access_key")
	c.SecretKey = p.take("secret_key")
	if c.AccessKey != "" && c.SecretKey == "" {
		if c.SecretKey = os.Getenv("AWS_SECRET_ACCESS_KEY"); c.SecretKey == "" {
			err = errors.Join(err, errors.New("access_key without a secret: set AWS_SECRET_ACCESS_KEY, or leave access_key away and use the environment alone"))
		}
	}
	if c.AccessKey == "" && c.SecretKey != "" {
		err = errors.Join(err, errors.New("secret_key without access_key: give both or neither"))
	}
	return source{config: c, prefix: prefix}, err
}

func gcsSource(u *url.URL) (source, error) {
	bucket, prefix, err := bucketAndPrefix(u, "bucket")
	c := gcs.DefaultConfig
	c.Bucket = bucket
	return source{config: c, prefix: prefix}, err
}

func azureSource(u *url.URL, p *params) (source, error) {
	name, prefix, err := bucketAndPrefix(u, "container")
	c := defaultAzure()
	c.ContainerName = name
	c.StorageAccountName = cmp.Or(p.take("account"), os.Getenv("AZURE_STORAGE_ACCOUNT"))
	c.Endpoint = cmp.Or(p.take("endpoint"), c.Endpoint)
	c.StorageAccountKey = os.Getenv("AZURE_STORAGE_ACCESS_KEY")
	if c.StorageAccountKey == "" {
		c.StorageConnectionString = os.Getenv("AZURE_STORAGE_CONNECTION_STRING")
	}
	if c.StorageAccountName == "" {
		err = errors.Join(err, errors.New("no storage account: add ?account=name, or set AZURE_STORAGE_ACCOUNT"))
	}
	return source{config: c, prefix: prefix}, err
}

// defaultAzure differs from thanos in that a missing container is an error.
func defaultAzure() azure.Config {
	c := azure.DefaultConfig
	c.StorageCreateContainer = false
	return c
}

// parseFile reads a YAML file in the format of thanos-io/objstore.
func parseFile(path string) (source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return source{}, fmt.Errorf("bucket %q is neither a URL nor a file that can be read: write %s", path, schemes)
	}
	if info.IsDir() {
		abs, err := filepath.Abs(path)
		if err != nil {
			return source{}, err
		}
		return source{}, fmt.Errorf("bucket %q is a folder: write file://%s", path, filepath.ToSlash(abs))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return source{}, err
	}
	src, err := parseYAML(text)
	if err != nil {
		return source{}, fmt.Errorf("bucket configuration %s: %w", path, err)
	}
	return src, nil
}

func parseYAML(text []byte) (source, error) {
	var outer struct {
		Type   string        `yaml:"type"`
		Config yaml.MapSlice `yaml:"config"`
		Prefix string        `yaml:"prefix"`
	}
	if err := yaml.UnmarshalStrict(text, &outer); err != nil {
		return source{}, fmt.Errorf("want the keys type, config and prefix: %w", err)
	}
	inner, err := yaml.Marshal(outer.Config)
	if err != nil {
		return source{}, err
	}
	src := source{prefix: strings.Trim(outer.Prefix, "/")}
	if err := checkPrefix(src.prefix); err != nil {
		return source{}, err
	}
	src.config, err = parseConfig(strings.ToUpper(outer.Type), inner)
	return src, err
}

// parseConfig parses the part of a YAML file that depends on its type.
func parseConfig(kind string, text []byte) (any, error) {
	switch kind {
	case "S3":
		c := s3.DefaultConfig
		return require(&c, text, "bucket", &c.Bucket)
	case "GCS":
		c := gcs.DefaultConfig
		return require(&c, text, "bucket", &c.Bucket)
	case "AZURE":
		c := defaultAzure()
		return require(&c, text, "container", &c.ContainerName)
	case "FILESYSTEM":
		var c filesystem.Config
		return require(&c, text, "directory", &c.Directory)
	case "":
		return nil, errors.New("no type: write type: S3, GCS, AZURE or FILESYSTEM")
	}
	return nil, fmt.Errorf("%w: type %s; a store that creates objects only if absent is needed: S3, GCS, AZURE or FILESYSTEM", ErrUnsupported, kind)
}

// require parses text into c and insists on one of its fields.
func require[C any](c *C, text []byte, key string, field *string) (any, error) {
	if err := yaml.UnmarshalStrict(text, c); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if *field == "" {
		return nil, fmt.Errorf("config: no %s", key)
	}
	return *c, nil
}

// open makes the provider. It makes no request.
func (s source) open(ctx context.Context, opts Options) (b Bucket, err error) {
	switch c := s.config.(type) {
	case memoryConfig:
		b = NewMemory()
	case filesystem.Config:
		dir, err := filepath.Abs(c.Directory)
		if err != nil {
			return nil, err
		}
		// The prefix is part of the folder, so that unfinished uploads are in it too.
		return openFolder(filepath.Join(dir, filepath.FromSlash(s.prefix)), opts)
	case s3.Config:
		b, err = openS3(c)
	case gcs.Config:
		b, err = openGCS(ctx, c)
	case azure.Config:
		b, err = openAzure(c)
	}
	if err != nil {
		return nil, err
	}
	return withPrefix(b, s.prefix), nil
}

func openFolder(root string, opts Options) (Bucket, error) {
	open := func() (*fsBucket, error) { return openFilesystem(root, opts.Logger) }
	if opts.Existing {
		open = func() (*fsBucket, error) { return openExistingFilesystem(root) }
	}
	f, err := open()
	if err != nil {
		return nil, err // not f, which would be a bucket that is nil
	}
	return f, nil
}
