package httpapi

import (
	"encoding/json"
	"flag"
	"fmt"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"gopkg.in/yaml.v2"

	"github.com/brookletmq/brooklet/docs"
)

// The contract, docs/openapi.yaml, is held against every request of every test in this package: what a reply has must be
// declared. When all tests have run, TestMain looks at the reverse: what is declared must have been seen.

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if code == 0 && flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" &&
		flag.Lookup("test.list").Value.String() == "" && flag.Lookup("test.fuzz").Value.String() == "" {
		for _, missing := range contract.unseen() {
			fmt.Println("docs/openapi.yaml declares what no test has seen:", missing)
			code = 1
		}
	}
	os.Exit(code)
}

// openAPI is the parsed contract.
type openAPI struct {
	root map[string]any

	mu   sync.Mutex
	seen map[string]bool

	all []operation
}

var contract = loadContract()

func loadContract() *openAPI {
	var root any
	if err := yaml.Unmarshal(docs.OpenAPI, &root); err != nil {
		panic(err)
	}
	o := &openAPI{root: plainYAML(root).(map[string]any), seen: map[string]bool{}}
	o.all = o.operations()
	return o
}

// plainYAML turns the maps of the decoder into those of JSON.
func plainYAML(v any) any {
	switch v := v.(type) {
	case map[any]any:
		m := map[string]any{}
		for key, value := range v {
			m[fmt.Sprint(key)] = plainYAML(value)
		}
		return m
	case []any:
		for i := range v {
			v[i] = plainYAML(v[i])
		}
	}
	return v
}

// at follows a path of names, and references on the way.
func (o *openAPI) at(from any, names ...string) map[string]any {
	m, _ := o.deref(from).(map[string]any)
	for _, name := range names {
		m, _ = o.deref(m[name]).(map[string]any)
	}
	return m
}

func (o *openAPI) deref(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	ref, ok := m["$ref"].(string)
	if !ok {
		return v
	}
	return o.at(o.root, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
}

// operation is one method of one address.
type operation struct {
	id, method, path     string
	declared, parameters map[string]any // parameters by place and name
}

func (o *openAPI) operations() (all []operation) {
	for path, item := range o.at(o.root, "paths") {
		for method, op := range o.at(item) {
			if method == "parameters" {
				continue
			}
			m := o.at(op)
			found := operation{id: m["operationId"].(string), method: strings.ToUpper(method), path: path, declared: m, parameters: map[string]any{}}
			list, _ := m["parameters"].([]any)
			for _, p := range list {
				q := o.at(p)
				found.parameters[q["in"].(string)+" "+q["name"].(string)] = q
			}
			all = append(all, found)
		}
	}
	return all
}

func TestContractHasAllRoutes(t *testing.T) {
	declared := map[string]bool{}
	for _, op := range contract.all {
		declared[op.method+" "+op.path+" "+op.id] = true
	}
	for _, r := range routes {
		key := r.method + " " + r.path + " " + r.name
		if !declared[key] {
			t.Errorf("docs/openapi.yaml does not have %s", key)
		}
		delete(declared, key)
	}
	for key := range declared {
		t.Errorf("there is no route %s", key)
	}
}

// Every parameter of the contract is one that the server asks for, and the reverse: unknown ones are errors.
func TestContractHasAllParameters(t *testing.T) {
	d := openDoor(t, nil)
	d.append("a/b", "x")
	for _, op := range contract.all {
		path := strings.ReplaceAll(op.path, "{name}", "a/b")
		for place, p := range op.parameters {
			where, name, _ := strings.Cut(place, " ")
			if where != "query" {
				continue
			}
			// A value that no parameter can have is told from a parameter that is not known.
			query := "?" + name + "=1&" + name + "=2"
			if op.id == "listStreams" && slices.Contains([]string{"from", "cursor", "values"}, name) {
				query += "&live=sse"
			}
			a, err := d.try(op.method, path+query, "")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(a.body, "there is no parameter") {
				t.Errorf("%s does not know its parameter %s (%v)", op.id, name, p)
			}
		}
		if op.method == http.MethodHead {
			continue
		}
		a := d.ask(400, op.method, path+"?nonsense=1", "")
		if members := a.wantProblem(t, badRequest); members["parameter"] != "nonsense" {
			t.Errorf("%s: %s", op.id, a.body)
		}
	}
}

func TestContractHasAllProblems(t *testing.T) {
	var declared []string
	for _, code := range contract.at(contract.root, "components", "schemas", "Problem", "properties", "code")["enum"].([]any) {
		declared = append(declared, code.(string))
	}
	var real []string
	for _, k := range problemKinds {
		real = append(real, k.code)
	}
	if !slices.Equal(declared, real) {
		t.Errorf("declared %v\nreal %v", declared, real)
	}
}

// A description with a comma that lacks its quotes becomes names without values.
func TestContractHasNoNulls(t *testing.T) {
	var look func(path string, v any)
	look = func(path string, v any) {
		switch v := v.(type) {
		case nil:
			t.Errorf("%s is null", path)
		case map[string]any:
			for name, value := range v {
				look(path+"/"+name, value)
			}
		case []any:
			for i, value := range v {
				look(fmt.Sprint(path, "/", i), value)
			}
		}
	}
	look("", contract.root)
}

func TestContractIsServed(t *testing.T) {
	d := openDoor(t, nil)
	a := d.ask(200, "GET", "/v1/openapi.yaml", "")
	wantEqual(t, "contract", a.body, string(docs.OpenAPI))
	d.ask(304, "GET", "/v1/openapi.yaml", "", "If-None-Match", a.Header.Get("ETag"))
}

// check holds a reply against the contract. body is nil of a reply that was not read.
func (o *openAPI) check(t testing.TB, r *http.Request, resp *http.Response, body *string) {
	t.Helper()
	route, _ := findRoute(r.Method, r.URL.Path)
	if route == nil {
		return
	}
	ops := o.all
	i := slices.IndexFunc(ops, func(op operation) bool { return op.id == route.name })
	if i < 0 {
		return // TestContractHasAllRoutes says so
	}
	op := ops[i]
	what := fmt.Sprintf("%s %s: status %d of %s", r.Method, r.URL, resp.StatusCode, op.id)
	reply := o.at(op.declared, "responses", fmt.Sprint(resp.StatusCode))
	if reply == nil {
		t.Errorf("%s is not declared", what)
		return
	}
	o.mu.Lock()
	o.seen[op.id+" "+fmt.Sprint(resp.StatusCode)] = true
	o.mu.Unlock()
	headers := o.at(reply, "headers")
	for name := range resp.Header {
		if strings.HasPrefix(name, "Brooklet-") && headers[name] == nil && op.method != http.MethodHead {
			t.Errorf("%s: the header %s is not declared", what, name)
		}
	}
	if resp.StatusCode < 300 {
		for name := range r.URL.Query() {
			if op.parameters["query "+name] == nil {
				t.Errorf("%s: the parameter %s is not declared", what, name)
			}
		}
	}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	content := o.at(reply, "content")
	schema := o.at(content, media)
	switch {
	case media == "" || op.method == http.MethodHead:
	case schema == nil && content["*/*"] == nil:
		t.Errorf("%s: the content type %s is not declared", what, media)
	case body != nil && strings.HasSuffix(media, "json") && media != mediaNDJSON && schema["schema"] != nil:
		var value any
		if err := json.Unmarshal([]byte(*body), &value); err != nil {
			t.Errorf("%s: %v", what, err)
		} else if err := o.valid(schema["schema"], value); err != nil {
			t.Errorf("%s: %v: %s", what, err, *body)
		}
	}
}

// valid checks a value by the parts of JSON Schema that the contract uses.
func (o *openAPI) valid(schema, value any) error {
	s := o.at(schema)
	if choices, ok := s["oneOf"].([]any); ok {
		matching := 0
		var errs []error
		for _, choice := range choices {
			err := o.valid(choice, value)
			if err == nil {
				matching++
			}
			errs = append(errs, err)
		}
		if matching != 1 {
			return fmt.Errorf("%d of the choices match: %v", matching, errs)
		}
		return nil
	}
	if choices, ok := s["enum"].([]any); ok && !slices.Contains(choices, value) {
		return fmt.Errorf("%v is none of %v", value, choices)
	}
	kinds, _ := s["type"].([]any)
	if kind, ok := s["type"].(string); ok {
		kinds = []any{kind}
	}
	if kinds != nil && !slices.Contains(kinds, any(jsonKind(value))) && !(jsonKind(value) == "integer" && slices.Contains(kinds, any("number"))) {
		return fmt.Errorf("%v is a %s, not %v", value, jsonKind(value), kinds)
	}
	switch value := value.(type) {
	case []any:
		for i, item := range value {
			if err := o.valid(s["items"], item); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
	case map[string]any:
		required, _ := s["required"].([]any)
		for _, name := range required {
			if _, ok := value[name.(string)]; !ok {
				return fmt.Errorf("%s is missing", name)
			}
		}
		properties := o.at(s, "properties")
		for name, member := range value {
			property, ok := properties[name]
			if !ok && s["additionalProperties"] == false {
				return fmt.Errorf("%s is not declared", name)
			}
			if err := o.valid(property, member); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func jsonKind(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case float64:
		if v == float64(int64(v)) {
			return "integer"
		}
		return "number"
	}
	return "object"
}

// unseen lists the declared replies that no test has got, but for failures of the broker, which are the same everywhere.
func (o *openAPI) unseen() (missing []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.all {
		for status := range o.at(op.declared, "responses") {
			if key := op.id + " " + status; !o.seen[key] && status < "500" && status != "408" && status != "413" {
				missing = append(missing, key)
			}
		}
	}
	slices.Sort(missing)
	return missing
}
