package objstore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thanos-io/objstore/providers/azure"
	"github.com/thanos-io/objstore/providers/filesystem"
	"github.com/thanos-io/objstore/providers/gcs"
	"github.com/thanos-io/objstore/providers/s3"
)

func clearEnv(t *testing.T) {
	for _, name := range []string{
		"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SECRET_ACCESS_KEY",
		"AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_CONNECTION_STRING",
	} {
		t.Setenv(name, "")
	}
}

func parse(t *testing.T, address string) source {
	t.Helper()
	src, err := parseSource(address)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func TestParseURLs(t *testing.T) {
	clearEnv(t)

	src := parse(t, "file:///var/lib/a%20b")
	if c := src.config.(filesystem.Config); c.Directory != "/var/lib/a b" || src.prefix != "" {
		t.Errorf("file: %+v", src)
	}

	src = parse(t, "s3://logs/a/b/?region=eu-central-1&endpoint=http://minio:9000/&access_key=k&secret_key=s&path_style=true")
	c := src.config.(s3.Config)
	if c.Bucket != "logs" || src.prefix != "a/b" || c.Region != "eu-central-1" || c.Endpoint != "minio:9000" ||
		!c.Insecure || c.AccessKey != "k" || c.SecretKey != "s" || c.BucketLookupType != s3.PathLookup {
		t.Errorf("s3: %+v", src)
	}

	t.Setenv("AWS_REGION", "us-west-2")
	src = parse(t, "s3://logs")
	if c := src.config.(s3.Config); c.Endpoint != "s3.amazonaws.com" || c.Region != "us-west-2" || c.Insecure || c.AccessKey != "" {
		t.Errorf("s3 by environment: %+v", src)
	}

	src = parse(t, "gs://logs/p")
	if c := src.config.(gcs.Config); c.Bucket != "logs" || src.prefix != "p" {
		t.Errorf("gs: %+v", src)
	}

	src = parse(t, "azblob://logs/p?account=acct")
	if c := src.config.(azure.Config); c.ContainerName != "logs" || c.StorageAccountName != "acct" || c.StorageCreateContainer || src.prefix != "p" {
		t.Errorf("azblob: %+v", src)
	}

	if _, ok := parse(t, "mem://").config.(memoryConfig); !ok {
		t.Error("mem")
	}
}

func TestParseYAML(t *testing.T) {
	for text, check := range map[string]func(source) bool{
		"type: S3\nconfig: {bucket: b, endpoint: e, region: r, sse_config: {type: SSE-S3}}\nprefix: /p/": func(s source) bool {
			c, ok := s.config.(s3.Config)
			return ok && c.Bucket == "b" && c.Endpoint == "e" && c.SSEConfig.Type == "SSE-S3" && c.SendContentMd5 && s.prefix == "p"
		},
		"type: gcs\nconfig: {bucket: b}": func(s source) bool {
			c, ok := s.config.(gcs.Config)
			return ok && c.Bucket == "b"
		},
		"type: AZURE\nconfig: {container: c, storage_account: a, storage_account_key: k}": func(s source) bool {
			c, ok := s.config.(azure.Config)
			return ok && c.ContainerName == "c" && !c.StorageCreateContainer
		},
		"type: FILESYSTEM\nconfig: {directory: /d}\nprefix: p": func(s source) bool {
			c, ok := s.config.(filesystem.Config)
			return ok && c.Directory == "/d" && s.prefix == "p"
		},
	} {
		path := filepath.Join(t.TempDir(), "bucket.yml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if src := parse(t, path); !check(src) {
			t.Errorf("%s: %+v", text, src)
		}
	}
}

// Each mistake is answered with what to write instead, and never with a secret.
func TestParseErrors(t *testing.T) {
	clearEnv(t)
	dir := t.TempDir()
	yaml := func(text string) string {
		path := filepath.Join(t.TempDir(), "bucket.yml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for address, say := range map[string]string{
		"":                                    "set --bucket to file:///",
		"http://bucket":                       `unknown scheme "http"`,
		"/no/such/file.yaml":                  "neither a URL nor a file",
		dir:                                   "write file://" + dir,
		"file://relative/path":                "write file:///relative/path",
		"file:///x?sync=no":                   `unknown parameter "sync"`,
		"s3://":                               "no bucket: write s3://bucket/prefix",
		"s3:///prefix":                        "no bucket",
		"s3://minio:9000/bucket":              "parameter endpoint",
		"s3://b?regoin=x":                     "known here: region, endpoint, insecure, path_style, access_key, secret_key",
		"s3://b?insecure=maybe":               "write true or false",
		"s3://b?region=a&region=b":            "given 2 times",
		"s3://b?access_key=k":                 "set AWS_SECRET_ACCESS_KEY",
		"s3://b?secret_key=hush":              "give both or neither",
		"s3://key:hush@b":                     "credentials come from the environment",
		"s3://b/a//b":                         "prefix",
		"s3://b/%zz?secret_key=hush":          "is not a URL",
		"s3://b?secret_key=hush%zz":           "name=value",
		"gs://b?project=x":                    "there are none here",
		"azblob://c":                          "add ?account=name",
		yaml("type: SWIFT\nconfig: {}"):       "S3, GCS, AZURE or FILESYSTEM",
		yaml("config: {}"):                    "no type",
		yaml("type: S3\nconfig: {}"):          "no bucket",
		yaml("type: S3\nconfig: {bukket: b}"): "bukket",
		yaml("kind: S3"):                      "type, config and prefix",
	} {
		_, err := parseSource(address)
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%q: %v; want it to say %q", address, err, say)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: the error shows the secret: %v", address, err)
		}
	}
}

func TestLocation(t *testing.T) {
	clearEnv(t)
	t.Setenv("AZURE_STORAGE_ACCESS_KEY", "a2V5")
	dir := t.TempDir()
	for address, want := range map[string]string{
		"file://" + dir: "file://" + dir,
		"s3://b/p/q?region=us-east-1&access_key=k&secret_key=hush": "s3://b/p/q",
		"azblob://c?account=a": "azblob://c",
		"mem://":               "mem://",
	} {
		opts := Options{URL: address, SkipProbe: true}
		b, err := Open(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Location(); got != want {
			t.Errorf("Location of %s is %s", address, got)
		}
		if got, want := b.Local(), strings.HasPrefix(want, "file") || strings.HasPrefix(want, "mem"); got != want {
			t.Errorf("Local of %s is %v", address, got)
		}
		b.Close()
	}
}
